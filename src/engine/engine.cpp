#include "engine/engine_impl.h"

#include "base/cores.h"
#include "engine/sampler.h"
#include "model/cache_key.h"
#include "model/kv_scales.h"
#include "store/file_store.h"
#include "store/memory_store.h"
#include "store/tiered_store.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <random>
#include <utility>

namespace fovea {
namespace {

constexpr int kFillThreadsMax = 16;     // that bring K and V to host memory
constexpr size_t kRequestsMax = 16384;  // submitted and not over, held ones included
constexpr size_t kSaltBytesMax = 1024;
constexpr double kWaitMaxS = 3600;
constexpr double kStoringWaitS = 0.005;  // a step begins the next writes when some are done

BlockKey random_key() {
  std::random_device random;
  BlockKey key;
  for (uint8_t& byte : key.bytes) byte = static_cast<uint8_t>(random());
  return key;
}

}  // namespace

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::none:
      return "none";
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::aborted:
      return "aborted";
    case FinishReason::failed:
      return "failed";
  }
  return "?";
}

Result<std::unique_ptr<Engine>> Engine::create(EngineOptions options) {
  auto engine = std::make_unique<EngineImpl>(std::move(options));
  FOVEA_TRY(engine->init());
  return std::unique_ptr<Engine>(std::move(engine));
}

EngineImpl::~EngineImpl() = default;

Status EngineImpl::init() {
  FOVEA_TRY(check_options(options_));
  if (options_.threads == 0) options_.threads = usable_cores();
  FOVEA_ASSIGN(model_, load_model(options_));
  if (options_.max_model_len == 0) options_.max_model_len = model_->config.max_position_embeddings;
  info_ = describe(*model_, options_);
  if (model_->tokenizer)
    grammars_ = std::make_unique<JsonGrammars>(*model_->tokenizer, info_.vocab_size, model_->config.eos_token_ids);
  const bool has_dir = !options_.kv_store.dir.empty();
  parts_.tier = parts_.store || (has_dir && !options_.kv_store.readonly);  // one that takes what is written
  parts_.tier_in_place = parts_.store ? parts_.store->is_memory() : !has_dir && options_.kv_host_memory_bytes > 0;
  FOVEA_ASSIGN(runner_, Runner::create(options_, model_->config, info_.shape, model_->weights, std::move(parts_)));
  const CachePlan& plan = runner_->cache_plan();
  blocks_ = std::make_unique<BlockManager>(
      BlockManagerConfig{.num_blocks = plan.num_blocks,
                         .block_size = options_.block_size,
                         .swap_slots = runner_->swap_slots(),
                         .num_columns = plan.num_columns,
                         .reserve_columns = plan.reserve_columns,
                         .host_below = runner_->device_extents() && runner_->device_extents()->host_holds_all(),
                         .reserve_swap = [this](SwapSlot slot) { return runner_->reserve_swap(slot); },
                         .private_key = random_key()});
  SchedulerConfig s;
  s.max_num_batched_tokens = options_.max_num_batched_tokens;
  s.max_num_seqs = options_.max_num_seqs;
  s.sparse_extend_max_tokens = options_.sparse_extend_max_tokens;
  s.max_step_kv_blocks = options_.max_step_kv_blocks;
  FOVEA_TRY(open_store());
  scheduler_ = std::make_unique<Scheduler>(s, *blocks_, store_.get());
  chooser_ = std::make_unique<TokenChooser>(info_.vocab_size, model_->config.eos_token_ids);
  runner_->set_prompt_logits([this](RowOwner& owner, int64_t first_position, std::span<const float> logits) {
    score_prompt(static_cast<LiveAnswer&>(owner), first_position, logits);
  });
  publish_stats();
  return {};
}

Status EngineImpl::open_store() {
  const StoreOptions& o = options_.kv_store;
  std::shared_ptr<BlockStore> store = std::move(parts_.store);
  DeviceExtentCache* const device = runner_->device_extents();
  DeviceExtentCache* const below = blocks_->host_below() ? device : nullptr;  // host memory holds all, and a store is below that
  const int64_t memory = below ? 0 : options_.kv_host_memory_bytes - (device ? device->host_bytes() : 0);
  if (!store && !o.dir.empty()) {
    FOVEA_ASSIGN(std::unique_ptr<BlockStore> files,
                 FileStore::open({.options = o,
                                  .prefer_direct = runner_->reads_past_the_page_cache() || memory > 0,
                                  .read_threads = runner_->read_threads(),
                                  .patience_s = parts_.store_patience_s}));
    store = memory > 0 ? std::make_shared<TieredStore>(std::move(files), memory) : std::shared_ptr<BlockStore>(std::move(files));
  }
  if (!store && memory > 0) store = std::make_shared<MemoryStore>(memory);
  if (store) {
    const auto host = below ? std::optional(below->host_blocks()) : std::nullopt;
    FOVEA_ASSIGN(store_, KvStore::create(std::move(store), runner_->make_column_io(), *blocks_, !o.readonly && !below,
                                         parts_.store_patience_s, host, std::clamp(options_.threads - 1, 1, kFillThreadsMax)));
    if (below) FOVEA_TRY(below->set_fill(store_->fill()));
  }
  if (below) spiller_ = std::make_unique<ColumnSpiller>(*blocks_, *runner_, o.readonly ? nullptr : store_.get());
  if (device && !below) {
    extent_source_ = std::make_unique<ChannelSource>(store_->store());
    device->set_source(extent_source_.get(), &blocks_->columns()->homes());
  }
  if (ExtentCache* extents = runner_->extents(); extents && store_) {
    const BlockHomes& homes = blocks_->columns()->homes();
    prefetcher_ = runner_->make_prefetcher(store_->store(), homes, clock_);
    if (!prefetcher_) extent_source_ = std::make_unique<ChannelSource>(store_->store());
    BlockStore& lower = store_->store();
    strip_reader_ = runner_->make_strip_reader(lower);
    extents->set_source(prefetcher_ ? &prefetcher_->engine() : extent_source_.get(), &homes, lower.is_memory() ? &lower : nullptr,
                        strip_reader_.get());
  }
  return {};
}

// Blocks of one lineage are never found by another, nor those of one salt. Methods that leave the same in the cache share a
// lineage. Null without prefix caching.
std::shared_ptr<BlockHasher> EngineImpl::hasher_of(int32_t prefill_method, const std::string& cache_salt) {
  if (!options_.enable_prefix_caching) return nullptr;
  const Method* m = method_of(prefill_method);
  const std::string lineage = (m ? m->lineage() : "dense") + " " + runner_->numerics_name();
  if (const auto known = hashers_.find({lineage, cache_salt}); known != hashers_.end()) return known->second;
  // There may be as many salts as requests: those that nobody uses go.
  std::erase_if(hashers_, [](const auto& entry) { return !entry.first.second.empty() && entry.second.use_count() == 1; });
  KeyContext key = key_context(model_->config);
  key.model_digest = model_->model_digest;
  key.tokenizer_digest = model_->tokenizer_digest;
  key.kv_dtype = options_.kv_cache_dtype;
  key.kv_scales = kv_scales_digest(model_->weights.kv_scales);
  key.block_size = options_.block_size;
  key.tenant_salt = options_.tenant_salt;
  key.cache_salt = cache_salt;
  key.lineage = lineage;
  return hashers_[{lineage, cache_salt}] = std::make_shared<BlockHasher>(key);
}

// ---- text ----

Result<std::vector<TokenId>> EngineImpl::tokenize(std::string_view text) const {
  if (!model_->tokenizer) return Status::not_found(options_.model_dir + ": the model has no tokenizer");
  return model_->tokenizer->encode(text);
}

std::string EngineImpl::detokenize(std::span<const TokenId> tokens) const {
  return model_->tokenizer ? model_->tokenizer->decode(tokens) : std::string();
}

std::string EngineImpl::token_bytes(TokenId token) const {
  return model_->tokenizer ? std::string(model_->tokenizer->id_to_bytes(token)) : std::string();
}

Result<std::shared_ptr<const TokenGrammar>> EngineImpl::json_grammar(std::string_view schema) const {
  if (!grammars_) return Status::not_found(options_.model_dir + ": the model has no tokenizer");
  return grammars_->compile(schema);
}

Result<std::string> EngineImpl::apply_chat_template(const ChatInput& input) const {
  if (!model_->chat) return Status::not_found(options_.model_dir + ": the model has no chat template");
  return model_->chat->render(input, std::time(nullptr));
}

// ---- requests ----

Status EngineImpl::check_method(const char* field, const std::string& label, bool prefill) const {
  if (label.empty()) return {};
  std::string able;
  for (const MethodEntry& e : runner_->methods()) {
    if (e.method && !(prefill ? e.method->prefills() : e.method->decodes())) continue;
    if (e.label == label) return {};
    able += (able.empty() ? "" : ", ") + e.label;
  }
  return Status::invalid_argument(std::string(field) + ": \"" + label + "\" is not loaded or cannot serve as one; loaded: " + able);
}

Status EngineImpl::check_tokens(const char* field, std::span<const TokenId> tokens) const {
  for (TokenId id : tokens) {
    if (id < 0 || id >= model_->config.vocab_size)
      return Status::invalid_argument(std::string(field) + ": token id " + std::to_string(id) + " is not in [0, " +
                                      std::to_string(model_->config.vocab_size) + ")");
  }
  return {};
}

Status EngineImpl::check_request(const Request& r) const {
  FOVEA_TRY(check_sampling(r.sampling));
  if (r.prompt.empty())
    return Status::invalid_argument(std::string("prompt: it has no tokens") + (r.fork_of ? "; a fork needs one of its own" : ""));
  FOVEA_TRY(check_tokens("prompt", r.prompt));
  FOVEA_TRY(check_tokens("given_answer", r.given_answer));
  for (const auto& biased : r.sampling.logit_bias) FOVEA_TRY(check_tokens("logit_bias", {&biased.first, 1}));
  if (!r.given_answer.empty() && (r.sampling.n != 1 || r.sampling.max_tokens == 0))
    return Status::invalid_argument("given_answer: needs n = 1 and max_tokens > 0, not " + std::to_string(r.sampling.n) + " and " +
                                    std::to_string(r.sampling.max_tokens));
  const int64_t length = static_cast<int64_t>(r.prompt.size()) + (r.sampling.max_tokens > 0 ? 1 : 0);
  if (length > options_.max_model_len)
    return Status::invalid_argument("prompt: " + std::to_string(r.prompt.size()) + " tokens do not fit --max-model-len " +
                                    std::to_string(options_.max_model_len));
  if (blocks_->blocks_for(length) > blocks_->num_blocks())
    return Status::resource_exhausted(
        "prompt: " + std::to_string(r.prompt.size()) + " tokens need " + std::to_string(blocks_->blocks_for(length)) +
        " KV blocks, " + (blocks_->columns() ? "with --kv-cache-memory and --kv-tokens there are " : "--kv-cache-memory holds ") +
        std::to_string(blocks_->num_blocks()));
  FOVEA_TRY(check_method("decode_method", r.decode_method, false));
  FOVEA_TRY(check_method("prefill_method", r.prefill_method, true));
  if (r.trace_mass && !runner_->can_trace_mass())
    return Status::unsupported("trace_mass: it needs a model with K and V in its cache, not MLA");
  if (r.trace_mass && blocks_->columns())
    return Status::unsupported("trace_mass: it reads whole contexts, and the KV pool holds only a part of them (--kv-offload)");
  if (r.budget_tokens < 0) return Status::invalid_argument("budget_tokens: " + std::to_string(r.budget_tokens) + " is negative");
  const std::string& decodes = r.decode_method.empty() ? options_.decode_method : r.decode_method;
  if (const Method* m = method_of(runner_->method_index(decodes)); r.budget_tokens > 0 && m && m->trained())
    return Status::invalid_argument(
        "budget_tokens: " + std::to_string(r.budget_tokens) + ": " + decodes +
        " reads what the model was trained to read, and no request's budget (dsa[topk=...] reads less)");
  if (r.hold && (r.sampling.n != 1)) return Status::invalid_argument("hold: needs n = 1, not " + std::to_string(r.sampling.n));
  if (r.cache_salt.size() > kSaltBytesMax)
    return Status::invalid_argument("cache_salt: it has " + std::to_string(r.cache_salt.size()) + " bytes, more than " +
                                    std::to_string(kSaltBytesMax));
  if (r.sampling.prompt_logprobs && r.fork_of)
    return Status::invalid_argument("prompt_logprobs: not with fork_of, whose tokens are computed already");
  if (r.grammar && (!r.given_answer.empty() || r.sampling.min_tokens > 0))
    return Status::invalid_argument("grammar: not with given_answer or min_tokens: it says alone what comes and where it ends");
  if (r.sampling.max_tokens == 0 && r.sampling.n != 1) return Status::invalid_argument("max_tokens: 0 needs n = 1");
  return {};
}

Result<RequestId> EngineImpl::submit(Request request) {
  FOVEA_TRY(check_request(request));
  std::lock_guard<std::mutex> lock(mutex_);
  if (known_.size() >= kRequestsMax)
    return Status::busy("the engine holds " + std::to_string(kRequestsMax) + " requests: try again later");
  const RequestId id{next_request_++};
  known_.emplace(id, Known{});
  inbox_.push_back({id, std::move(request), clock_.now_s()});
  arrived_.notify_one();
  return id;
}

void EngineImpl::abort(RequestId id) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = known_.find(id);
  if (it == known_.end() || std::exchange(it->second.aborted, true)) return;
  aborts_.push_back(id);
  arrived_.notify_one();
}

void EngineImpl::release(RequestId id) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = known_.find(id);
  if (it == known_.end() || std::exchange(it->second.released, true)) return;
  releases_.push_back(id);
  arrived_.notify_one();
}

int64_t EngineImpl::computed_tokens(RequestId id) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = known_.find(id);
  return it == known_.end() ? 0 : it->second.computed_tokens;
}

void EngineImpl::wake() {
  std::lock_guard<std::mutex> lock(mutex_);
  woken_ = true;
  arrived_.notify_one();
}

bool EngineImpl::wait_for_work(double timeout_s) {
  if (!scheduler_->idle() || !unread_.empty()) return true;
  const bool storing = (store_ && store_->is_storing()) || (spiller_ && !spiller_->idle());
  const double most_s = std::clamp(timeout_s, 0.0, storing ? kStoringWaitS : kWaitMaxS);
  std::unique_lock<std::mutex> lock(mutex_);
  const bool arrived = arrived_.wait_for(lock, std::chrono::duration<double>(most_s),
                                         [&] { return woken_ || !inbox_.empty() || !aborts_.empty() || !releases_.empty(); });
  woken_ = false;
  return arrived || storing;
}

EngineStats EngineImpl::stats() const {
  std::lock_guard<std::mutex> lock(mutex_);
  EngineStats s = stats_;
  s.requests_waiting += static_cast<int64_t>(inbox_.size());
  return s;
}

// At the end of a step, for those who ask while the next one runs.
void EngineImpl::publish_stats() {
  EngineStats s;
  s.steps = steps_;
  s.requests_running = scheduler_->num_running();
  s.requests_waiting = scheduler_->num_waiting();
  s.finished = finished_;
  s.prompt_tokens = scheduler_->stats().prompt_tokens;
  s.generation_tokens = generation_tokens_;
  s.prefix_query_tokens = scheduler_->stats().prefix_query_tokens;
  s.prefix_hit_tokens = scheduler_->stats().prefix_hit_tokens;
  s.blocks_total = blocks_->num_blocks();
  s.blocks_free = blocks_->num_free();
  s.blocks_in_use = s.blocks_total - s.blocks_free;
  s.block_bytes = runner_->kv().bytes_per_block();
  s.pool_blocks = runner_->kv().config().num_slots;
  s.staging_blocks = runner_->cache_plan().staging_columns;
  s.swapped_bytes = int64_t{runner_->swap_slots() - blocks_->num_swap_free()} * s.block_bytes;
  s.preemptions = scheduler_->stats().preempted_recompute + scheduler_->stats().preempted_swap;
  s.loaded_tokens = scheduler_->stats().loaded_tokens;
  s.loaded_bytes = loaded_bytes_;
  s.load_s = load_s_;
  s.stored_blocks = store_ ? store_->stored_blocks() : 0;
  s.repaired_blocks = repaired_blocks_;
  s.unstored_blocks = store_ ? store_->unstored_blocks() : 0;
  s.store_error = store_ ? store_->last_error().message() : "";
  if (prefetcher_) s.prefetch = prefetcher_->stats();
  std::lock_guard<std::mutex> lock(mutex_);
  stats_ = std::move(s);
}

KvMemory EngineImpl::kv_memory() const {
  std::lock_guard<std::mutex> between_steps(step_mutex_);
  KvMemory m;
  for (int32_t p = 0; p < runner_->kv().num_planes(); ++p) {
    const Plane& plane = runner_->kv().plane(PlaneIdx{p});
    (plane.spec().residency == Residency::pooled ? m.pool : m.summaries) += plane.resident_bytes();
  }
  if (const ExtentCache* extents = runner_->extents()) m.tables = extents->bytes();
  if (prefetcher_) m.read_ahead = prefetcher_->engine().resident_bytes();
  if (store_) m.host = store_->store().stats().memory_bytes;
  if (const DeviceExtentCache* extents = runner_->device_extents()) {
    m.tables = extents->bytes();
    m.host = extents->host_bytes() + (extents->host_holds_all() ? 0 : m.host);  // beside windows, what a TieredStore keeps
  }
  return m;
}

}  // namespace fovea
