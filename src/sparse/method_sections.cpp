#include "sparse/method_sections.h"

#include <fovea/kernels/hash_rotation.h>

#include <algorithm>
#include <set>
#include <sstream>

namespace fovea {
namespace {

template <typename T>
T& field_of(MethodOptions& o, T GsaOptions::*field) {
  return o.gsa.*field;
}
template <typename T>
T& field_of(MethodOptions& o, T DsaOptions::*field) {
  return o.dsa.*field;
}
template <typename T>
T& field_of(MethodOptions& o, T XAttentionOptions::*field) {
  return o.xattention.*field;
}

template <auto Field>
bool set(const YAML::Node& n, MethodOptions& o) {
  auto& field = field_of(o, Field);
  field = n.as<std::remove_reference_t<decltype(field)>>();
  return true;
}

bool ignore(const YAML::Node&, MethodOptions&) { return true; }

template <typename Enum, size_t kCount>
bool set_enum(const YAML::Node& n, const std::pair<const char*, Enum> (&names)[kCount], Enum* out) {
  if (!n.IsScalar()) return false;
  for (const auto& [name, value] : names) {
    if (n.Scalar() != name) continue;
    *out = value;
    return true;
  }
  return false;
}

bool set_representation(const YAML::Node& n, MethodOptions& o) {
  using R = GsaRepresentation;
  static constexpr std::pair<const char*, R> kNames[] = {{"hash", R::hash},           {"mean", R::mean},
                                                         {"minmax", R::minmax},       {"recency", R::recency},
                                                         {"mean_hash", R::mean_hash}, {"oracle", R::oracle}};
  return set_enum(n, kNames, &o.gsa.representation);
}

bool set_codes(const YAML::Node& n, MethodOptions& o) {
  static constexpr std::pair<const char*, GsaCodes> kNames[] = {{"symmetric", GsaCodes::symmetric},
                                                                {"asymmetric", GsaCodes::asymmetric}};
  return set_enum(n, kNames, &o.gsa.codes);
}

bool set_scoring(const YAML::Node& n, MethodOptions& o) {
  static constexpr std::pair<const char*, GsaScoring> kNames[] = {{"device", GsaScoring::device}, {"host", GsaScoring::host}};
  return set_enum(n, kNames, &o.gsa.scoring);
}

bool set_budget_split(const YAML::Node& n, MethodOptions& o) {
  static constexpr std::pair<const char*, BudgetSplit> kNames[] = {{"equal", BudgetSplit::equal}, {"mass", BudgetSplit::mass}};
  return set_enum(n, kNames, &o.gsa.budget_split);
}

bool set_late_policy(const YAML::Node& n, MethodOptions& o) {
  static constexpr std::pair<const char*, LatePolicy> kNames[] = {{"exact", LatePolicy::exact},
                                                                  {"best_effort", LatePolicy::best_effort}};
  return set_enum(n, kNames, &o.gsa.late_policy);
}

bool set_precision(const YAML::Node& n, MethodOptions& o) {
  using P = IndexPrecision;
  static constexpr std::pair<const char*, P> kNames[] = {{"exact", P::exact}, {"bf16", P::bf16}, {"fp8", P::fp8}};
  return set_enum(n, kNames, &o.dsa.precision);
}

// Both methods of the family have these.
constexpr MethodKey kGsaFamilyKeys[] = {
    {"sparse_ratio", set<&GsaOptions::sparse_ratio>},
    {"budget_tokens", set<&GsaOptions::budget_tokens>},
    {"init_window_sz", set<&GsaOptions::init_window_sz>},
    {"local_window_sz", set<&GsaOptions::local_window_sz>},
    {"min_blocks", set<&GsaOptions::min_blocks>},
    {"codes", set_codes, "symmetric or asymmetric"},
    {"length_factor", set<&GsaOptions::length_factor>},
    {"scoring", set_scoring, "device or host"},
    {"budget_split", set_budget_split, "equal or mass"},
    {"top_p", set<&GsaOptions::top_p>},
    {"hash_bits", set<&GsaOptions::hash_bits>},
    {"hash_planes", ignore},  // check_codes() looks at it
    {"hash_seed", set<&GsaOptions::hash_seed>},
    {"hash_cache_size", ignore, nullptr, "codes live and die with their blocks"},
    {"average_group", set<&GsaOptions::average_group>},
    {"share_heads", set<&GsaOptions::share_heads>},
    {"dense_layers", set<&GsaOptions::dense_layers>},
    {"reuse_layers", set<&GsaOptions::reuse_layers>},
    {"overlap", set<&GsaOptions::overlap>},
    {"prefetch", set<&GsaOptions::prefetch>, "on or off"},
    {"prefetch_ahead", set<&GsaOptions::prefetch_ahead>},
    {"prefetch_workers", set<&GsaOptions::prefetch_workers>},
    {"max_pending_prefetch", set<&GsaOptions::max_pending_prefetch>},
    {"prefetch_cache_size", set<&GsaOptions::prefetch_cache_size>},
    {"late_policy", set_late_policy, "exact or best_effort"},
};

constexpr MethodKey kGsaKeys[] = {
    {"representation", set_representation, "hash, mean, minmax, recency, mean_hash or oracle"},
};

// A list over the layers, of a number each or of a list over the heads.
bool set_thresholds(const YAML::Node& n, MethodOptions& o) {
  if (!n.IsSequence()) return false;
  std::vector<std::vector<double>> table;
  for (const YAML::Node& layer : n)
    table.push_back(layer.IsSequence() ? layer.as<std::vector<double>>() : std::vector<double>{layer.as<double>()});
  o.xattention.thresholds = std::move(table);
  return true;
}

constexpr MethodKey kXAttentionKeys[] = {
    {"stride", set<&XAttentionOptions::stride>},
    {"block_size", set<&XAttentionOptions::block_size>},
    {"norm", set<&XAttentionOptions::norm>},
    {"threshold", set<&XAttentionOptions::threshold>},
    {"thresholds", set_thresholds, "a list of numbers, or of lists of numbers"},
    {"top_k", set<&XAttentionOptions::top_k>},
    {"sink_blocks", set<&XAttentionOptions::sink_blocks>},
    {"recent_blocks", set<&XAttentionOptions::recent_blocks>},
    {"group_vote", set<&XAttentionOptions::group_vote>},
    {"min_context", set<&XAttentionOptions::min_context>},
};

constexpr MethodKey kDsaKeys[] = {
    {"precision", set_precision, "exact, bf16 or fp8"},
    {"topk", set<&DsaOptions::topk>},
    {"materialize", set<&DsaOptions::materialize>},
    {"prefix_chunk_capacity", set<&DsaOptions::prefix_chunk_capacity>},
};

// On one line, cut where it is long: a value can be a whole tree.
std::string printed(const YAML::Node& node) {
  std::ostringstream out;
  out << node;
  std::string text = out.str().substr(0, 60);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// UCM has both bits and planes; a plane is a bit here, so they must agree whichever comes first, and either says both. Codes of
// tokens are compared in one way or the other; other representations have none.
Status check_codes(const YAML::Node& section, const std::string& where, MethodOptions* o) {
  if (section["codes"] && o->gsa.representation != GsaRepresentation::hash)
    return Status::invalid_argument(where + ".codes: compares hash codes of tokens: representation is another");
  if (!section["hash_planes"]) return {};
  int64_t planes = -1;
  const bool read = YAML::convert<int64_t>::decode(section["hash_planes"], planes);
  if (read && o->gsa.hash_bits == 0 && planes > 0 && planes <= kMaxHashBits) o->gsa.hash_bits = static_cast<int32_t>(planes);
  if (!read || planes != o->gsa.hash_bits)
    return Status::invalid_argument(where + ".hash_planes: " + printed(section["hash_planes"]) + " differs from hash_bits " +
                                    std::to_string(o->gsa.hash_bits));
  return {};
}

const MethodKey* find_key(const MethodSection& section, const std::string& name) {
  for (const auto& keys : section.keys) {
    for (const MethodKey& key : keys) {
      if (name == key.name) return &key;
    }
  }
  return nullptr;
}

}  // namespace

const std::vector<MethodSection>& method_sections() {
  static const std::vector<MethodSection> sections = {
      {"DSA", "dsa", {kDsaKeys}},
      {"GSA", "gsa", {kGsaFamilyKeys, kGsaKeys}, check_codes},
      {"GSA_OnDevice", "gsa_on_device", {kGsaFamilyKeys}, check_codes},
      {"XAttention", "xattention", {kXAttentionKeys}},
  };
  return sections;
}

Status read_method_section(const MethodSection& section, const YAML::Node& values, const std::string& where, MethodOptions* options,
                           std::vector<std::string>* notes) {
  options->name = section.method;
  if (values.IsNull()) return {};
  if (!values.IsMap()) return Status::invalid_argument(where + " is not a map");
  std::set<std::string> seen;
  for (const auto& entry : values) {
    const std::string name = entry.first.Scalar();
    const MethodKey* key = find_key(section, name);
    if (!key) return Status::invalid_argument(where + "." + name + " is not a known key");
    if (!seen.insert(name).second) return Status::invalid_argument(where + "." + name + " is given twice");
    bool ok = false;
    try {
      ok = key->set(entry.second, *options);
    } catch (const YAML::Exception&) {
    }
    if (!ok)
      return Status::invalid_argument(where + "." + name + ": \"" + printed(entry.second) + "\" is not " +
                                      (key->expects ? key->expects : "of its type"));
    if (key->no_effect && notes) notes->push_back(where + "." + name + " has no effect: " + key->no_effect);
  }
  return section.check ? section.check(values, where, options) : Status();
}

}  // namespace fovea
