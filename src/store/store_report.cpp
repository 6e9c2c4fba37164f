// What people want to know of a store's directory: the functions of <fovea/store.h>.
#include <fovea/store.h>

#include "store/file_store.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

namespace fovea {
namespace {

Result<std::unique_ptr<FileStore>> open_to_read(const std::string& dir) {
  FileStoreConfig config;
  config.options.dir = dir;
  config.options.readonly = true;
  return FileStore::open(config);
}

// Slabs by the keys in them. Of a key in two slabs the newer counts.
class Chains {
 public:
  explicit Chains(const FileStore& store) : fronts_(store.fronts()) {
    for (const SlabIndex::Front& f : fronts_) {
      for (uint32_t at = 0; at < f->blocks(); ++at) places_[f->keys[at]] = {f.get(), at};
      parents_.insert(f->parent);
    }
    for (const SlabIndex::Usage& u : store.usage()) used_s_[u.number] = u.used_s;
  }

  // One for each last block that nothing follows.
  std::vector<StoredDocument> documents() const {
    std::vector<StoredDocument> out;
    for (const SlabIndex::Front& f : fronts_) {
      const StoreKey& last = f->keys.back();
      if (!parents_.contains(last) && places_.at(last).slab == f.get()) out.push_back(document(*f));
    }
    std::ranges::sort(out, [](const StoredDocument& a, const StoredDocument& b) {
      return std::tie(b.used_s, b.tokens, a.key) < std::tie(a.used_s, a.tokens, b.key);
    });
    return out;
  }

 private:
  struct Place {
    const SlabFront* slab;
    uint32_t at;
  };

  StoredDocument document(const SlabFront& last) const {
    StoredDocument d{.key = last.keys.back().hex(), .created_s = last.created_s};
    std::set<uint64_t> seen;
    Place place{&last, last.blocks() - 1};
    for (;;) {
      const SlabFront& slab = *place.slab;
      if (!seen.insert(slab.number).second) break;  // parents in a circle: no writer makes them
      for (uint32_t at = 0; at <= place.at; ++at) d.tokens += slab.tokens(at);
      d.blocks += place.at + 1;
      d.bytes += static_cast<int64_t>(slab.file_bytes);
      d.used_s = std::max(d.used_s, used_s_.at(slab.number));
      if (slab.parent == StoreKey{}) break;
      const auto before = places_.find(slab.parent);
      d.has_beginning = before != places_.end();
      if (!d.has_beginning) break;
      place = before->second;
    }
    d.slabs = static_cast<int64_t>(seen.size());
    return d;
  }

  std::vector<SlabIndex::Front> fronts_;
  std::unordered_map<StoreKey, Place> places_;
  std::unordered_set<StoreKey> parents_;
  std::unordered_map<uint64_t, uint64_t> used_s_;
};

std::vector<StoredPart> parts_of(const std::vector<SlabIndex::Front>& fronts) {
  std::map<std::tuple<std::string, uint32_t, uint32_t>, StoredPart> parts;
  for (const SlabIndex::Front& f : fronts) {
    for (const SlabPart& p : f->parts) {
      StoredPart& part = parts[{p.spec.name, p.spec.units, p.spec.unit_bytes}];
      part.name = p.spec.name;
      part.units = p.spec.units;
      part.unit_bytes = p.spec.unit_bytes;
      ++part.slabs;
      part.bytes += int64_t{p.spec.units} * p.spec.unit_bytes * f->blocks();
    }
  }
  std::vector<StoredPart> out;
  for (auto& [_, part] : parts) out.push_back(std::move(part));
  return out;
}

class Collector final : public VerifySink {
 public:
  Collector(StoreVerdict* out, const std::function<void(const StoreDamage&)>& on_damage) : out_(out), on_damage_(on_damage) {}
  void checked(const SlabVerdict& slab) override {
    ++out_->slabs;
    out_->blocks += slab.blocks;
    out_->extents += static_cast<int64_t>(slab.extents);
    out_->bytes += static_cast<int64_t>(slab.bytes);
    if (slab.fault.empty()) return;
    out_->damage.push_back({slab.name, slab.fault});
    if (on_damage_) on_damage_(out_->damage.back());
  }

 private:
  StoreVerdict* out_;
  const std::function<void(const StoreDamage&)>& on_damage_;
};

}  // namespace

Result<StoreContents> read_store(const std::string& dir) {
  FOVEA_ASSIGN(const std::unique_ptr<FileStore> store, open_to_read(dir));
  FOVEA_ASSIGN(const std::vector<std::string> unfinished, store->directory().unfinished());
  const StoreStats stats = store->stats();
  StoreContents out{.slabs = stats.slabs, .blocks = stats.blocks, .bytes = stats.bytes - store->other_bytes()};
  out.other_slabs = store->other_slabs();
  out.other_bytes = store->other_bytes();
  out.bad_slabs = store->bad_fronts() + static_cast<int64_t>(store->directory().bad().size());
  out.unfinished = static_cast<int64_t>(unfinished.size());
  out.parts = parts_of(store->fronts());
  out.documents = Chains(*store).documents();
  return out;
}

Result<StoreVerdict> verify_store(const std::string& dir, const std::function<void(const StoreDamage&)>& on_damage) {
  FOVEA_ASSIGN(const std::unique_ptr<FileStore> store, open_to_read(dir));
  StoreVerdict out;
  Collector collector(&out, on_damage);
  const Status status = store->verify(&collector);
  if (!status.ok() && out.damage.empty()) return status;  // the folder itself could not be read
  return out;
}

Result<StoreCollected> collect_store(const std::string& dir, int64_t size_bytes) {
  FOVEA_ASSIGN(const StoreContents before, read_store(dir));
  FileStoreConfig config;
  config.options.dir = dir;
  config.options.size_bytes = std::max<int64_t>(size_bytes, 1);
  FOVEA_ASSIGN(const std::unique_ptr<FileStore> store, FileStore::open(config));
  store->directory().remove_bad();
  const StoreStats after = store->stats();
  return StoreCollected{.removed_slabs = before.slabs - after.slabs,
                        .removed_bytes = before.bytes + before.other_bytes - after.bytes,
                        .left_bytes = after.bytes};
}

}  // namespace fovea
