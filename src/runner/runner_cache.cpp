// The KV cache of a runner: how large it is, and where its methods' planes lie.
#include "runner/runner.h"

#include "base/available_memory.h"

#include <algorithm>

namespace fovea {
namespace {

// The fused cache write keeps the codes of one codec. Others are made from the cache, by the places of blocks in the pool: where
// those are not the blocks' own, no other may be asked for.
Status check_codecs(const std::vector<MethodEntry>& methods) {
  const MethodEntry* first = nullptr;
  CodesView view;
  for (const MethodEntry& e : methods) {
    if (!e.method || !e.method->codes_view(nullptr, &view)) continue;
    if (first && e.method->planes()[0].name != first->method->planes()[0].name)
      return Status::unsupported(e.label + ": its hash codes differ from those of " + first->label + "; one kind is kept");
    if (!first) first = &e;
  }
  return {};
}

// Methods that name the same plane share it.
Status add_plane(PlaneSpec plane, const std::string& method, std::vector<PlaneSpec>* planes) {
  const auto same = std::find_if(planes->begin(), planes->end(), [&](const PlaneSpec& p) { return p.name == plane.name; });
  if (same == planes->end()) {
    planes->push_back(std::move(plane));
    return {};
  }
  if (*same == plane) return {};
  return Status::internal("method " + method + ": its plane " + plane.name + " differs from that of another method");
}

}  // namespace

Result<KvCacheConfig> Runner::cache_config() const {
  KvCacheConfig k;
  k.num_layers = shape_.num_layers;
  k.block_size = options_.block_size;
  k.kv_heads = shape_.kv_heads;
  k.head_dim = shape_.head_dim;
  k.dtype = options_.kv_cache_dtype;
  k.scales = kv_scales_;
  k.device = device_->is_host() ? nullptr : device_.get();
  k.latent = shape_.kv_lora_rank > 0;
  for (const MethodEntry& e : methods_) {
    if (!e.method) continue;
    for (PlaneSpec& p : e.method->planes()) FOVEA_TRY(add_plane(std::move(p), e.label, &k.extra_planes));
  }
  return k;
}

// What keeps contexts from being larger than the pool; empty: nothing.
std::string Runner::unfit_for_columns() const {
  if (!device_->is_host() && options_.kv_host_memory_bytes == 0) return "the pool of a GPU needs --kv-host-memory below it";
  if (shape_.kv_lora_rank > 0) return config_.architecture + " caches latents, not K and V of each head";
  if (!options_.enable_prefix_caching) return "without prefix caching blocks have no names to be found by";
  if (Status s = check_codecs(methods_); !s.ok()) return s.message();
  for (const MethodEntry& e : methods_) {
    if (!e.method) continue;
    if (e.method->waits()) return e.label + " has scoring: host: its codes lie beside the pool, not in it";
    if (e.method->prefills()) return e.label + " prefills sparsely: it reads keys of the whole pool";
    if (!e.method->chooses_without_keys()) return e.label + " chooses by keys, or by summaries other than hash codes";
    if (!e.method->dense_layers().empty()) return e.label + " has dense_layers: their rows would read whole contexts";
  }
  return "";
}

Status Runner::plan_memory() {
  CachePlanInputs in;
  FOVEA_ASSIGN(in.cache, cache_config());
  std::erase_if(in.cache.extra_planes, [](const PlaneSpec& p) { return p.on_host; });
  // On a GPU memory is taken at once, and nothing but this cache is still to come: nine tenths of what is left; or, before the
  // arrays of a step are made, eight.
  in.bytes = options_.kv_cache_memory_bytes ? options_.kv_cache_memory_bytes
             : device_->is_host()           ? available_memory() * 6 / 10
                                            : device_->free_bytes() / 10 * (logits_ ? 9 : 8);
  if (!device_->is_host()) in.host_bytes = options_.kv_host_memory_bytes, in.store_below_host = parts_.tier;
  in.max_model_len = options_.max_model_len;
  in.kv_tokens = options_.kv_tokens;
  in.max_num_seqs = options_.max_num_seqs;
  in.max_num_batched_tokens = options_.max_num_batched_tokens;
  for (const MethodEntry& e : methods_) {
    if (!e.method || !e.method->decodes()) continue;
    const int64_t len = options_.max_model_len;
    const bool grows = e.method->estimate_blocks(2 * len, 0) > e.method->estimate_blocks(len, 0);
    int64_t& most = grows ? in.growing_row_blocks : in.row_blocks;
    most = std::max(most, e.method->most_blocks(len, 0));
  }
  in.reads_ahead = device_->is_host() && prefetch_limits(prefetch_options(), 0).has_value();
  // Host memory above a store of files that takes nothing takes nothing either.
  const bool memory_takes = !device_->is_host() || !options_.kv_store.readonly;
  in.tier = parts_.tier || (options_.kv_host_memory_bytes > 0 && memory_takes);
  in.tier_in_place = parts_.tier_in_place && device_->is_host();
  // Once the arrays of a step are made it is too late for columns.
  in.offload = logits_ && !plan_.own_columns ? OffloadChoice::off : options_.kv_offload;
  in.unfit = unfit_for_columns();
  FOVEA_ASSIGN(plan_, plan_cache(in));
  options_.max_num_seqs = plan_.max_num_seqs;
  options_.max_num_batched_tokens = plan_.max_num_batched_tokens;
  return {};
}

Status Runner::make_cache() {
  if (!device_->is_host() && !plan_.own_columns) {
    const std::string note = plan_.note;
    FOVEA_TRY(plan_memory());
    plan_.note = note;
  }
  FOVEA_ASSIGN(KvCacheConfig k, cache_config());
  k.num_blocks = plan_.num_blocks;
  k.num_slots = plan_.pool_columns();
  k.joined = plan_.own_columns;
  // Large pages for large caches only: memory is then taken 2 MiB at a time per plane and layer.
  k.huge_pages = !plan_.own_columns && plan_.num_blocks * plan_.column_bytes >= (int64_t{1} << 30);
  for (const MethodEntry& e : methods_) {
    if (e.method && e.method->waits() && (parts_.tier || !options_.kv_store.dir.empty()))
      return Status::unsupported(e.label + ": scoring: host keeps its codes where no store finds them");
  }
  FOVEA_ASSIGN(kv_, KvCache::create(k));
  FOVEA_ASSIGN(swap_, SwapArea::create(*kv_, options_.swap_space_bytes));
  if (plan_.own_columns) FOVEA_TRY(make_extents());

  for (MethodEntry& e : methods_) {
    if (!e.method) continue;
    for (const PlaneSpec& p : e.method->planes()) e.planes.push_back(*kv_->find_plane(p.name));
    summaries_.add(e.method.get(), e.planes);
  }
  return {};
}

Status Runner::make_extents() {
  const int64_t longest = (options_.max_model_len + options_.block_size - 1) / options_.block_size;
  const int64_t max_blocks = std::min<int64_t>(longest, plan_.num_blocks);
  if (device_->is_host()) {
    FOVEA_ASSIGN(extents_, ExtentCache::create(*kv_, {.staging_columns = plan_.staging_columns,
                                                      .max_seqs = kTablesPerSequence * options_.max_num_seqs,
                                                      .max_blocks = max_blocks,
                                                      .poison_evicted = parts_.poison_evicted}));
    kv_->attach_extents(extents_.get());
    return {};
  }
  const DeviceExtentCacheConfig config = {.staging_columns = plan_.staging_columns,
                                          .max_blocks = max_blocks,
                                          .window_extents = plan_.window_extents,
                                          .poison_evicted = parts_.poison_evicted};
  FOVEA_ASSIGN(device_extents_, DeviceExtentCache::create(*kv_, config, *device_, *ops_));
  device_extents_->set_wave_base(wave_base_.device());
  kv_->attach_extents(device_extents_.get());
  return {};
}

std::vector<const GsaOptions*> Runner::prefetch_options() const {
  std::vector<const GsaOptions*> asked;
  for (const MethodEntry& e : methods_) {
    if (e.method && e.method->prefetch_options()) asked.push_back(e.method->prefetch_options());
  }
  return asked;
}

int Runner::read_threads() const {
  int threads = 0;
  for (const GsaOptions* o : prefetch_options()) threads = std::max<int>(threads, o->prefetch_workers);
  return threads > 0 ? threads : GsaOptions().prefetch_workers;
}

std::unique_ptr<StripReader> Runner::make_strip_reader(BlockStore& store) const {
  return parts_.one_thread || plan_.staging_columns == 0 ? nullptr : std::make_unique<StripReader>(store);
}

std::unique_ptr<Prefetcher> Runner::make_prefetcher(BlockStore& store, const BlockHomes& homes, const Clock& clock) {
  auto limits = prefetch_limits(prefetch_options(), shape_.num_layers * shape_.kv_heads);
  if (!limits) return nullptr;
  limits->landings = plan_.read_ahead;
  for (const MethodEntry& e : methods_) {
    if (e.method) e.method->keep_wants();
  }
  auto prefetcher = std::make_unique<Prefetcher>(store, *extents_, homes, *limits, clock, !parts_.one_thread);
  prefetcher_ = prefetcher.get();
  return prefetcher;
}

}  // namespace fovea
