// Filters over lists, dicts and other sequences.
#include <algorithm>

#include "text/jinja/attributes.h"
#include "text/jinja/builtins.h"
#include "text/jinja/python.h"
#include "text/jinja/unicode.h"

namespace fovea::jinja {

namespace {

Value lower_if_text(Runtime& rt, const Value& value) {
  return value.is_string() ? find_string_method("lower")->body(rt, value, {}) : value;
}

Value length(Runtime& rt, const Value& value, const Args& args) {
  const Params none("length", args, {}, 0);
  if (const auto count = length_of(value)) return Value::integer(*count);
  if (value.is(Kind::loop)) return get_attribute(rt, value, "length");
  Runtime::fail(std::string("a value of type '") + type_name(value) + "' has no length");
}

Value default_value(Runtime& rt, const Value& value, const Args& args) {
  const Params params("default", args, {"default_value", "boolean"}, 0);
  const bool replaced = value.is_undefined() || (params.flag(1, false) && !truthy(value));
  return !replaced ? value : params.has(0) ? params.get(0) : rt.str("");
}

Value first(Runtime& rt, const Value& value, const Args& args) {
  const Params none("first", args, {}, 0);
  Value item;
  return iterate(rt, value)->next(rt, &item) ? item : rt.undefined("no first item, sequence was empty");
}

Value last(Runtime& rt, const Value& value, const Args& args) {
  const Params none("last", args, {}, 0);
  Value item;
  const Value backwards = reversed(rt, value);
  return backwards.as<Iterator>().next(rt, &item) ? item : rt.undefined("no last item, sequence was empty");
}

Value list(Runtime& rt, const Value& value, const Args& args) {
  const Params none("list", args, {}, 0);
  return rt.list(to_vector(rt, value));
}

Value reverse(Runtime& rt, const Value& value, const Args& args) {
  const Params none("reverse", args, {}, 0);
  if (value.is_string()) return slice(rt, value, Value(), Value(), Value::integer(-1));
  if (!value.is(Kind::iterator) && !value.is(Kind::loop)) return reversed(rt, value);
  std::vector<Value> items = to_vector(rt, value);
  std::reverse(items.begin(), items.end());
  return rt.list(std::move(items));
}

Value join(Runtime& rt, const Value& value, const Args& args) {
  const Params params("join", args, {"d", "attribute"}, 0);
  std::vector<std::string> parts;
  std::optional<AttributePath> path;
  if (!params.is_none_or_missing(1)) path.emplace(rt, params.get(1));
  size_t bytes = 0;
  const auto iterator = iterate(rt, value);
  Value item;
  while (iterator->next(rt, &item)) {
    parts.push_back(to_text(rt, path ? path->get(rt, item) : item));
    rt.step();
    rt.check_text(bytes += parts.back().size());
  }
  return rt.str(join_texts(rt, params.has(0) ? to_text(rt, params.get(0)) : "", parts));
}

Value items(Runtime& rt, const Value& value, const Args& args) {
  const Params none("items", args, {}, 0);
  return rt.iterator(
      [value, at = size_t{0}](Runtime& run, Value* out) mutable {
        if (value.is_undefined()) return false;
        if (!value.is(Kind::dict)) Runtime::fail("items: can only get item pairs from a mapping");
        const Dict::Items& all = value.as<Dict>().items;
        if (at >= all.size()) return false;
        *out = run.tuple({all[at].first, all[at].second});
        ++at;
        return true;
      },
      value.depth());
}

// Stable, by keys that are computed once.
std::vector<Value> sort_by(Runtime& rt, std::vector<std::pair<Value, Value>> keyed, bool backwards) {
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return backwards ? less(rt, b.first, a.first) : less(rt, a.first, b.first);
  });
  std::vector<Value> out;
  for (auto& [key, value] : keyed) out.push_back(std::move(value));
  return out;
}

Value sort(Runtime& rt, const Value& value, const Args& args) {
  const Params params("sort", args, {"reverse", "case_sensitive", "attribute"}, 0);
  std::vector<AttributePath> paths;
  const Value attribute = params.get(2);
  if (attribute.is_string()) {
    const Value parts = find_string_method("split")->body(rt, attribute, Args{{rt.str(",")}, {}});
    for (const Value& part : parts.items()) paths.emplace_back(rt, part);
  } else {
    paths.emplace_back(rt, attribute);
  }
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : to_vector(rt, value)) {
    std::vector<Value> key;
    for (const AttributePath& path : paths) {
      const Value part = path.get(rt, item);
      key.push_back(params.flag(1, false) ? part : lower_if_text(rt, part));
    }
    keyed.emplace_back(rt.list(std::move(key)), item);
  }
  return rt.list(sort_by(rt, std::move(keyed), params.integer(0, 0) != 0));
}

Value dict_sort(Runtime& rt, const Value& value, const Args& args) {
  const Params params("dictsort", args, {"case_sensitive", "by", "reverse"}, 0);
  const std::string_view by = params.has(1) ? params.text(1) : "key";
  if (by != "key" && by != "value") Runtime::fail("dictsort: by must be 'key' or 'value'");
  if (value.is_undefined()) rt.fail_undefined(value);
  if (!value.is(Kind::dict)) Runtime::fail(std::string("dictsort needs a dict, not ") + type_name(value));
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, item] : value.as<Dict>().items) {
    const Value& chosen = by == "key" ? key : item;
    keyed.emplace_back(params.flag(0, false) ? chosen : lower_if_text(rt, chosen), rt.tuple({key, item}));
  }
  return rt.list(sort_by(rt, std::move(keyed), params.integer(2, 0) != 0));
}

Value unique(Runtime& rt, const Value& value, const Args& args) {
  const Params params("unique", args, {"case_sensitive", "attribute"}, 0);
  const AttributePath path(rt, params.get(1));
  const bool case_sensitive = params.flag(0, false);
  const auto source = std::make_shared<std::shared_ptr<Iterator>>();
  const auto seen = std::make_shared<DictBuilder>(rt);
  return rt.iterator(
      [=](Runtime& run, Value* out) {
        if (*source == nullptr) *source = iterate(run, value);
        while ((*source)->next(run, out)) {
          const Value part = path.get(run, *out);
          const Value key = case_sensitive ? part : lower_if_text(run, part);
          if (seen->contains(key)) continue;
          seen->set(key, Value());
          return true;
        }
        return false;
      },
      value.depth());
}

Value least_or_most(Runtime& rt, const char* name, const Value& value, const Args& args, bool most) {
  const Params params(name, args, {"case_sensitive", "attribute"}, 0);
  const AttributePath path(rt, params.get(1));
  std::optional<std::pair<Value, Value>> best;
  for (const Value& item : to_vector(rt, value)) {
    const Value part = path.get(rt, item);
    const Value key = params.flag(0, false) ? part : lower_if_text(rt, part);
    if (!best || (most ? less(rt, best->first, key) : less(rt, key, best->first))) best.emplace(key, item);
  }
  return best ? best->second : rt.undefined("no aggregated item, sequence was empty");
}
Value min(Runtime& rt, const Value& value, const Args& args) {
  return least_or_most(rt, "min", value, args, false);
}
Value max(Runtime& rt, const Value& value, const Args& args) {
  return least_or_most(rt, "max", value, args, true);
}

Value sum(Runtime& rt, const Value& value, const Args& args) {
  const Params params("sum", args, {"attribute", "start"}, 0);
  std::optional<AttributePath> path;
  if (!params.is_none_or_missing(0)) path.emplace(rt, params.get(0));
  Value total = params.get(1, Value::integer(0));
  if (total.is_string()) Runtime::fail("sum: cannot sum strings, use the filter join");
  for (const Value& item : to_vector(rt, value))
    total = binary(rt, Op::add, total, path ? path->get(rt, item) : item);
  return total;
}

Value batch(Runtime& rt, const Value& value, const Args& args) {
  const Params params("batch", args, {"linecount", "fill_with"}, 1);
  const bool counts = params.get(0).is_number();  // anything else never equals the size of a row
  const double size = counts ? params.get(0).as_double() : -1;
  const Value fill = params.get(1);
  std::vector<Value> rows, row;
  const auto close = [&] {
    rows.push_back(rt.list(std::move(row)));
    row.clear();
  };
  for (const Value& item : to_vector(rt, value)) {
    if (static_cast<double>(row.size()) == size) close();
    row.push_back(item);
  }
  if (!row.empty()) {
    if (!counts && !fill.is_none()) Runtime::fail("batch: linecount must be a number");
    while (!fill.is_none() && static_cast<double>(row.size()) < size) {
      rt.step();
      row.push_back(fill);
    }
    close();
  }
  const Value all = rt.list(std::move(rows));
  return Value(Kind::iterator, iterate(rt, all));
}

Value slice_filter(Runtime& rt, const Value& value, const Args& args) {
  const Params params("slice", args, {"slices", "fill_with"}, 1);
  const std::vector<Value> all = to_vector(rt, value);
  const Int count = params.integer(0, 1);
  if (count == 0) Runtime::fail("slice: division by zero");
  const Int size = static_cast<Int>(all.size()), each = count > 0 ? size / count : 0,
            longer = count > 0 ? size % count : 0;
  std::vector<Value> rows;
  Int at = 0;
  for (Int i = 0; i < count; ++i) {
    rt.step();
    const Int end = at + each + (i < longer ? 1 : 0);
    std::vector<Value> row(all.begin() + static_cast<int64_t>(at), all.begin() + static_cast<int64_t>(end));
    if (!params.is_none_or_missing(1) && i >= longer) row.push_back(params.get(1));
    rows.push_back(rt.list(std::move(row)));
    at = end;
  }
  const Value columns = rt.list(std::move(rows));
  return Value(Kind::iterator, iterate(rt, columns));
}

Value group_by(Runtime& rt, const Value& value, const Args& args) {
  const Params params("groupby", args, {"attribute", "default", "case_sensitive"}, 1);
  const AttributePath path(rt, params.get(0));
  const Value fallback = params.get(1);
  const Value* use = params.is_none_or_missing(1) ? nullptr : &fallback;
  const bool case_sensitive = params.flag(2, false);
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : to_vector(rt, value)) {
    const Value part = path.get(rt, item, use);
    keyed.emplace_back(case_sensitive ? part : lower_if_text(rt, part), item);
  }
  std::stable_sort(keyed.begin(), keyed.end(),
                   [&](const auto& a, const auto& b) { return less(rt, a.first, b.first); });
  std::vector<Value> groups;
  for (size_t begin = 0; begin < keyed.size();) {
    std::vector<Value> members;
    size_t end = begin;
    for (; end < keyed.size() && equal(rt, keyed[end].first, keyed[begin].first); ++end)
      members.push_back(keyed[end].second);
    if (end == begin) members.push_back(keyed[end++].second);  // NaN equals nothing
    const Value key = case_sensitive ? keyed[begin].first : path.get(rt, keyed[begin].second, use);
    groups.push_back(rt.tuple({key, rt.list(std::move(members))}, true));
    begin = end;
  }
  return rt.list(std::move(groups));
}

Value attr(Runtime& rt, const Value& value, const Args& args) {
  const Params params("attr", args, {"name"}, 1);
  // Only attributes, no items: what is not a method or a namespace's has none.
  if (value.is(Kind::dict) && find_method(value, params.text(0)) == nullptr)
    return rt.undefined("no such attribute");
  return get_attribute(rt, value, params.text(0));
}

constexpr NamedFilter kFilters[] = {
    {"attr", attr},
    {"batch", batch},
    {"count", length},
    {"d", default_value},
    {"default", default_value},
    {"dictsort", dict_sort},
    {"first", first},
    {"groupby", group_by},
    {"items", items},
    {"join", join},
    {"last", last},
    {"length", length},
    {"list", list},
    {"max", max},
    {"min", min},
    {"reverse", reverse},
    {"slice", slice_filter},
    {"sort", sort},
    {"sum", sum},
    {"unique", unique},
};

}  // namespace

AttributePath::AttributePath(Runtime& rt, const Value& attribute) {
  if (attribute.is_none()) return;
  if (!attribute.is_string()) {
    parts_.push_back(attribute);
    return;
  }
  const Value parts = find_string_method("split")->body(rt, attribute, Args{{rt.str(".")}, {}});
  for (const Value& part : parts.items()) {
    const std::string_view text = part.text();
    const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
    const auto index = digits ? parse_int(text, 10) : std::nullopt;
    parts_.push_back(index ? Value::integer(*index) : part);
  }
}

Value AttributePath::get(Runtime& rt, Value item, const Value* fallback) const {
  for (const Value& part : parts_) {
    item = get_item(rt, item, part);
    if (fallback != nullptr && item.is_undefined()) item = *fallback;
  }
  return item;
}

Filter find_list_filter(std::string_view name) {
  for (const NamedFilter& row : kFilters) {
    if (row.name == name) return row.filter;
  }
  return nullptr;
}

}  // namespace fovea::jinja
