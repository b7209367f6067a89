// Memory for Python: what torch's own entry points (torch.accelerator.*) do not offer.
#include "bindings/bindings.h"
#include "runtime/allocator.h"

namespace py = pybind11;

namespace neuron::bindings {

namespace {
// In the form of torch.cuda.memory_snapshot(), which the viewer at pytorch.org/memory_viz reads.
py::list memory_snapshot(c10::DeviceIndex device) {
  py::list segments;
  for (const auto& segment : runtime::memory_snapshot(device)) {
    py::list blocks;
    std::size_t address = segment.address;
    for (const auto& block : segment.blocks) {
      py::dict b;
      b["address"] = address;
      b["size"] = block.size;
      b["requested_size"] = block.requested_size;
      b["state"] = block.allocated ? "active_allocated" : block.active ? "active_awaiting_free" : "inactive";
      b["frames"] = py::list();
      blocks.append(std::move(b));
      address += block.size;
    }
    py::dict s;
    s["device"] = static_cast<int>(segment.device);
    s["address"] = segment.address;
    s["total_size"] = segment.total_size;
    s["allocated_size"] = segment.allocated_size;
    s["active_size"] = segment.active_size;
    s["requested_size"] = segment.requested_size;
    s["stream"] = reinterpret_cast<std::uintptr_t>(segment.stream);
    s["segment_type"] = segment.is_large ? "large" : "small";
    s["segment_pool_id"] = py::make_tuple(segment.owner_private_pool_id.first, segment.owner_private_pool_id.second);
    s["is_expandable"] = false;
    s["frames"] = py::list();
    s["blocks"] = std::move(blocks);
    segments.append(std::move(s));
  }
  return segments;
}
}  // namespace

void bind_memory(py::module_& m) { m.def("memory_snapshot", &memory_snapshot, py::arg("device")); }

}  // namespace neuron::bindings
