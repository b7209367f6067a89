#include "eager/fusion/recipe.h"

#include <cmath>
#include <limits>
#include <string>
#include <unordered_map>

#include "eager/aten_math/exact.h"
#include "eager/fusion/builder.h"

namespace neuron::eager::fusion {

using c10::ScalarType;

namespace {
std::unordered_map<std::string, Fusable>& table() {
  static auto* const table = new std::unordered_map<std::string, Fusable>;
  return *table;
}
}  // namespace

const Fusable* find_fusable(const std::string& name) {
  const auto it = table().find(name);
  return it == table().end() ? nullptr : &it->second;
}

void register_fusable(std::initializer_list<const char*> names, Fusable fusable) {
  for (const char* name : names) {
    const std::string_view text = name;
    table().emplace(text.find("::") == text.npos ? std::string("aten::") + name : name, fusable);
  }
}

std::unique_ptr<const Recipes> Recipes::make(const OpInfo& op, const Plan& plan, const Number* numbers) {
  if (!plan.usable) return nullptr;
  const Fusable* fusable = find_fusable(op.name);
  if (!fusable) return nullptr;
  register_aten_functions();  // not at import: it costs some milliseconds
  auto recipes = std::make_unique<Recipes>();
  recipes->op_ = &op;
  recipes->variant_ = fusable->variant;
  if (!fusable->variant && !recipes->choose(plan, numbers)) return nullptr;
  return recipes;
}

const Recipe* Recipes::choose(const Plan& plan, const Number* numbers) const {
  const int variant = variant_ ? variant_(numbers) : 0;
  if (variant < 0) return nullptr;
  const auto index = static_cast<std::size_t>(variant);
  if (index >= variants_.size()) variants_.resize(index + 1);
  if (!variants_[index]) {
    auto recipe = std::make_unique<Recipe>();  // an empty one: these numbers cannot be fused
    try {
      Builder builder(*op_, plan, numbers);
      find_fusable(op_->name)->build(builder);
      recipe = builder.take();
    } catch (const Builder::Unfusable&) {
    }
    variants_[index] = std::move(recipe);
  }
  const Recipe& recipe = *variants_[index];
  return recipe.pieces.empty() || !recipe.numbers_fit(numbers) ? nullptr : &recipe;
}

bool Recipe::numbers_fit(const Number* numbers) const {
  const auto fits = []<class T>(double value, T) {
    return value >= static_cast<double>(std::numeric_limits<T>::lowest()) &&
           value <= static_cast<double>(std::numeric_limits<T>::max());
  };
  for (const auto& range : ranges) {
    const Number& number = numbers[range.number];
    if (number.type == Number::Type::kComplex) return false;
    const bool floating = number.type == Number::Type::kDouble;
    if (floating && !std::isfinite(number.real[0])) {
      if (!c10::isFloatingType(range.type)) return false;
      continue;
    }
    const double value = floating ? number.real[0] : static_cast<double>(number.integer);
    bool fit = true;
    switch (range.type) {
      case ScalarType::Half:
        fit = std::abs(value) <= 65504.0;
        break;
      case ScalarType::BFloat16:  // 255 * 2^120, the largest finite one
        fit = std::abs(value) <= 0x1.FEp+127;
        break;
      case ScalarType::Float:
        fit = fits(value, float{});
        break;
      case ScalarType::Int:
        fit = fits(value, std::int32_t{});
        break;
      case ScalarType::Short:
        fit = fits(value, std::int16_t{});
        break;
      case ScalarType::Char:
        fit = fits(value, std::int8_t{});
        break;
      case ScalarType::Byte:
        fit = fits(value, std::uint8_t{});
        break;
      case ScalarType::Long:  // beyond 2^53 a double is not exact; such floating-point numbers are left to ATen
        fit = !floating || std::abs(value) <= 0x1p53;
        break;
      default:
        break;
    }
    if (!fit) return false;
  }
  return true;
}

}  // namespace neuron::eager::fusion
