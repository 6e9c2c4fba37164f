// Scales of an fp8 cache: a layer's and KV head's keys (values) lie in it divided by their scale.
#pragma once

#include <vector>

namespace fovea {

struct KvScales {
  std::vector<float> k, v;  // [layers, kv_heads] each above 0; both empty: 1
  bool empty() const { return k.empty(); }
};

}  // namespace fovea
