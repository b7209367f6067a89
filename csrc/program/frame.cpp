#include "program/frame.h"

#include "eager/alias.h"
#include "eager/describe.h"

namespace neuron::program {

Frame::Frame(Program& program)
    : program_(program),
      bases_(program->buffers.size()),
      addresses_(program->tensors.size()),
      storages_(program->buffers.size()),
      aliases_(program->tensors.size()) {
  for (const auto& step : program->steps) steps_.push_back(step->instantiate(*this));
}

const at::Tensor& Frame::alias(std::uint32_t tensor) {
  auto& alias = aliases_[tensor];
  if (alias.defined()) return alias;
  const Tensor& spec = program_->tensors[tensor];
  auto& storage = storages_[spec.buffer];
  if (!storage) storage = eager::cpu_storage(nullptr, 0);
  alias = at::Tensor(c10::make_intrusive<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(spec.dtype)));
  return alias;
}

void Frame::check_alias(std::uint32_t tensor, const std::string& op) const {
  const auto* t = aliases_[tensor].unsafeGetTensorImpl();
  const Tensor& spec = program_->tensors[tensor];
  const auto& storage = t->unsafe_storage();
  bool same = storage.unsafeGetStorageImpl() == storages_[spec.buffer].get() && storage.data() == bases_[spec.buffer] &&
              t->sizes().size() == spec.sizes.size();
  for (std::size_t d = 0; same && d < spec.sizes.size(); ++d) same = t->sizes()[d] == value(spec.sizes[d]);
  TORCH_CHECK(same, "torchneuron: ", op, " has resized an argument, which steps of a program cannot do");
}

void Frame::point(std::uint32_t buffer, char* base) {
  bases_[buffer] = base;
  auto* storage = storages_[buffer].get();
  if (!storage) return;
  storage->set_data_ptr_noswap(c10::DataPtr(base, c10::Device(c10::DeviceType::CPU)));
  storage->set_nbytes(static_cast<std::size_t>(binding_->reaches_to(buffer)));
}

void Frame::prepare(const Binding& binding, void* const* bases, const at::Generator& generator) {
  binding_ = &binding;
  generator_ = generator;
  const bool other_ints = last_binding_ != binding.id();
  last_binding_ = binding.id();

  const auto& buffers = program_->buffers;
  char* arena = static_cast<char*>(bases[program_->arguments.size() + program_.fresh_outputs()]);
  std::size_t next_output = program_->arguments.size();
  std::size_t next_block = next_output + program_.fresh_outputs() + 1;
  for (std::uint32_t b = 0; b < buffers.size(); ++b) {
    char* base = nullptr;
    switch (buffers[b].kind) {
      case Buffer::Kind::kArgument:
        base = static_cast<char*>(bases[buffers[b].index]);
        break;
      case Buffer::Kind::kOutput:
      case Buffer::Kind::kHostOutput:
        base = static_cast<char*>(bases[next_output++]);
        break;
      case Buffer::Kind::kArena:
        base = arena + value(buffers[b].value);
        break;
      case Buffer::Kind::kBlock:
        base = static_cast<char*>(bases[next_block++]);
        break;
      case Buffer::Kind::kConstant: {
        const auto* t = program_->constants[buffers[b].index].unsafeGetTensorImpl();
        base = static_cast<char*>(const_cast<void*>(t->unsafe_storage().data())) +
               t->storage_offset() * static_cast<std::int64_t>(t->itemsize());
        break;
      }
    }
    if (base != bases_[b] || other_ints) point(b, base);
  }
  for (std::uint32_t t = 0; t < addresses_.size(); ++t)
    addresses_[t] = bases_[program_->tensors[t].buffer] + binding.place(t).offset;
  if (!other_ints) return;

  for (std::uint32_t t = 0; t < aliases_.size(); ++t) {
    if (!aliases_[t].defined()) continue;
    auto* impl = aliases_[t].unsafeGetTensorImpl();
    const auto shape = binding.shape_of(program_->tensors[t]);
    impl->set_storage_offset(value(program_->tensors[t].offset));
    impl->set_sizes_and_strides(shape.sizes, shape.strides);
  }
  for (auto& step : steps_) step->rebind(*this);
}

void Frame::run(const eager::LaunchSite* site) {
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const auto context = [&](std::string_view error) {
      const auto& label = program_->steps[i]->label();
      const std::string from = label.empty() ? "" : c10::str(" (", label, ")");
      return eager::describe_launch(
          c10::str("step ", i, " of program '", program_->name, "', ", steps_[i]->describe(*this, error), from, ","),
          site);
    };
    try {
      steps_[i]->run(*this);
    } catch (c10::Error& error) {  // keeps its class: IndexError stays IndexError
      error.add_context(context(error.what_without_backtrace()));
      throw;
    } catch (const std::exception& error) {
      C10_THROW_ERROR(Error, c10::str(error.what(), "\n", context(error.what())));
    }
  }
}

}  // namespace neuron::program
