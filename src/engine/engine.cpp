#include "engine/engine_impl.h"

#include "base/check.h"
#include "base/cores.h"
#include "kernels/ref/ref_ops.h"
#include "sparse/registry.h"

#include <algorithm>
#include <ctime>

namespace fovea {
namespace {

constexpr size_t kInboxMax = 4096;  // requests waiting to be taken over by step()

}  // namespace

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::none: return "none";
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::aborted: return "aborted";
    case FinishReason::failed: return "failed";
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
  const ModelConfig& c = model_->config;
  if (options_.max_model_len == 0) options_.max_model_len = c.max_position_embeddings;
  options_.max_num_seqs = std::min(options_.max_num_seqs, options_.max_num_batched_tokens);
  info_ = describe(*model_, options_);

  FOVEA_TRY(make_methods());
  FOVEA_TRY(make_cache());
  FOVEA_TRY(make_ops());
  make_step_buffers();
  return {};
}

Status EngineImpl::make_methods() {
  const auto add = [&](const MethodOptions& o) -> Status {
    for (const MethodEntry& e : methods_) {
      if (e.name == o.name) return o.name == "dense" ? Status() : Status::invalid_argument("method " + o.name + " is given twice");
    }
    FOVEA_ASSIGN(auto method, make_method(o));
    FOVEA_ASSIGN(auto policy, LayerPolicy::make(model_->config.num_layers, o.gsa.dense_layers));
    if (method) FOVEA_TRY(method->attach(info_.shape, {options_.max_num_batched_tokens, options_.max_model_len}));
    methods_.push_back({o.name, std::move(method), std::move(policy), {}});
    return {};
  };
  FOVEA_TRY(add(MethodOptions{}));
  for (const MethodOptions& o : options_.methods) FOVEA_TRY(add(o));
  if (method_index(options_.decode_method) < 0)
    FOVEA_TRY(add({options_.decode_method, GsaOptions{}}));
  return {};
}

int32_t EngineImpl::method_index(const std::string& name) const {
  for (size_t i = 0; i < methods_.size(); ++i) {
    if (methods_[i].name == name) return static_cast<int32_t>(i);
  }
  return -1;
}

Status EngineImpl::make_cache() {
  KvCacheConfig k;
  k.num_layers = info_.shape.num_layers;
  k.block_size = options_.block_size;
  k.kv_heads = info_.shape.kv_heads;
  k.head_dim = info_.shape.head_dim;
  k.dtype = options_.kv_cache_dtype;
  for (const MethodEntry& e : methods_) {
    if (!e.method) continue;
    for (PlaneSpec& p : e.method->planes()) k.extra_planes.push_back(std::move(p));
  }
  const int64_t block_bytes = column_bytes(k);
  const int64_t blocks_per_seq = (options_.max_model_len + k.block_size - 1) / k.block_size;
  const int64_t wanted = blocks_per_seq * options_.max_num_seqs;
  const int64_t bytes = options_.kv_cache_memory_bytes ? options_.kv_cache_memory_bytes : available_memory() * 6 / 10;
  const int64_t blocks = std::min(wanted, bytes / block_bytes);
  if (blocks < 1)
    return Status::resource_exhausted("--kv-cache-memory " + std::to_string(bytes) + ": one block of " +
                                      std::to_string(k.block_size) + " tokens needs " + std::to_string(block_bytes) + " bytes");
  k.num_blocks = static_cast<int32_t>(std::min<int64_t>(blocks, INT32_MAX / 2));
  // Large pages for large caches only: memory is then taken 2 MiB at a time per plane and layer.
  k.huge_pages = blocks * block_bytes >= (int64_t{1} << 30);
  FOVEA_ASSIGN(kv_, KvCache::create(k));
  FOVEA_ASSIGN(swap_, SwapArea::create(*kv_, options_.swap_space_bytes));

  for (MethodEntry& e : methods_) {
    if (!e.method) continue;
    for (const PlaneSpec& p : e.method->planes()) e.planes.push_back(*kv_->find_plane(p.name));
    CodesView view;
    if (e.method->codes_view(nullptr, &view)) {
      codes_method_ = e.method.get();
      codes_plane_ = e.planes.at(0);
    }
  }
  blocks_ = std::make_unique<BlockManager>(BlockManagerConfig{k.num_blocks, k.block_size, swap_->num_slots()});
  SchedulerConfig s;
  s.max_num_batched_tokens = options_.max_num_batched_tokens;
  s.max_num_seqs = options_.max_num_seqs;
  s.sparse_extend_max_tokens = options_.sparse_extend_max_tokens;
  s.sparse_min_context = options_.sparse_min_context;
  scheduler_ = std::make_unique<Scheduler>(s, *blocks_);
  if (options_.enable_prefix_caching) {
    KeyContext key;
    key.model_digest = model_->model_digest;
    key.tokenizer_digest = model_->tokenizer_digest;
    key.attention_config = info_.rope + " d=" + std::to_string(k.head_dim) + " kv=" + std::to_string(k.kv_heads) +
                           " window=" + std::to_string(model_->config.sliding_window);
    key.kv_dtype = k.dtype;
    key.block_size = k.block_size;
    key.tenant_salt = options_.tenant_salt;
    key.lineage = numerics() == Numerics::bf16 ? "dense bf16" : "dense f32";
    hasher_ = std::make_unique<BlockHasher>(key);
  }
  return {};
}

Numerics EngineImpl::numerics() const {
  if (options_.use_reference_ops) return Numerics::f32;
  switch (options_.numerics) {
    case NumericsChoice::f32: return Numerics::f32;
    case NumericsChoice::bf16: return Numerics::bf16;
    case NumericsChoice::automatic: return preferred_numerics();
  }
  return Numerics::f32;
}

Status EngineImpl::make_ops() {
  const ModelConfig& c = model_->config;
  pool_ = std::make_unique<ThreadPool>(options_.threads);
  if (options_.use_reference_ops) {
    ops_ = make_ref_ops();
  } else {
    auto cpu = make_cpu_ops(*pool_, numerics());
    cpu_ops_ = cpu.get();
    ops_ = std::move(cpu);
  }
  OpsLimits limits;
  limits.max_rows = options_.max_num_batched_tokens;
  limits.max_decode_rows = options_.max_num_batched_tokens;
  limits.max_len = options_.max_model_len;
  limits.num_heads = c.num_heads;
  limits.kv_heads = c.num_kv_heads;
  limits.head_dim = c.head_dim;
  limits.block_size = options_.block_size;
  limits.max_k = std::max({c.hidden_size, c.intermediate_size, c.num_heads * c.head_dim});
  limits.max_n = std::max({c.hidden_size, c.intermediate_size, c.num_heads * c.head_dim, c.vocab_size});
  FOVEA_TRY(ops_->prepare(limits));
  if (cpu_ops_) {
    const auto add = [&](const WeightMatrix& w) { return cpu_ops_->add_linear_shape(static_cast<int32_t>(w.cols), static_cast<int32_t>(w.rows), w.dtype); };
    for (const LayerWeights& l : model_->weights.layers) {
      for (const WeightMatrix* w : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down})
        FOVEA_TRY(add(*w));
    }
    FOVEA_TRY(add(model_->weights.lm_head));
  }
  return {};
}

void EngineImpl::make_step_buffers() {
  const int32_t vocab = model_->config.vocab_size;
  const int64_t max_blocks = (options_.max_model_len + options_.block_size - 1) / options_.block_size;
  batch_ = std::make_unique<Batch>(
      BatchLimits{options_.max_num_batched_tokens, options_.max_num_seqs, max_blocks, options_.block_size,
                  options_.sparse_min_context},
      methods_);
  counter_ = std::make_unique<ReadCounter>(info_.shape, *batch_);
  logits_ = std::unique_ptr<float[]>(new float[int64_t{options_.max_num_seqs} * vocab]);
  scratch_logits_.resize(vocab);
  sampler_ = std::make_unique<Sampler>(vocab);
  arena_ = std::make_unique<Arena>(
      model_->transformer->workspace_bytes(options_.max_num_batched_tokens, options_.max_num_seqs));
  sampled_.reserve(256 + options_.max_num_seqs);
}

std::string EngineImpl::backend() const {
  return std::string(ops_->name()) + (ops_->numerics() == Numerics::bf16 ? " bf16" : " f32") + ", " +
         std::to_string(options_.threads) + (options_.threads == 1 ? " thread" : " threads");
}

// ---- text ----

Result<std::vector<TokenId>> EngineImpl::tokenize(std::string_view text) const {
  if (!model_->tokenizer) return Status::not_found(options_.model_dir + "/tokenizer.json: the model has no tokenizer");
  return model_->tokenizer->encode(text);
}

std::string EngineImpl::detokenize(std::span<const TokenId> tokens) const {
  return model_->tokenizer ? model_->tokenizer->decode(tokens) : std::string();
}

Result<std::string> EngineImpl::apply_chat_template(std::span<const ChatMessage> messages, bool add_generation_prompt) const {
  if (!model_->chat_template)
    return Status::not_found(options_.model_dir + "/tokenizer_config.json: chat_template: the model has none");
  ChatInput input;
  for (const ChatMessage& m : messages) input.messages.push_back({{"role", m.role}, {"content", m.content}});
  input.add_generation_prompt = add_generation_prompt;
  return model_->chat_template->render(chat_context(model_->chat_source, input), std::time(nullptr));
}

// ---- requests ----

Status EngineImpl::check_request(const Request& r) const {
  FOVEA_TRY(check_sampling(r.sampling));
  if (r.prompt.empty()) return Status::invalid_argument("prompt: it has no tokens");
  for (TokenId id : r.prompt) {
    if (id < 0 || id >= model_->config.vocab_size)
      return Status::invalid_argument("prompt: token id " + std::to_string(id) + " is not in [0, " +
                                      std::to_string(model_->config.vocab_size) + ")");
  }
  const int64_t length = static_cast<int64_t>(r.prompt.size()) + (r.sampling.max_tokens > 0 ? 1 : 0);
  if (length > options_.max_model_len)
    return Status::invalid_argument("prompt: " + std::to_string(r.prompt.size()) + " tokens do not fit --max-model-len " +
                                    std::to_string(options_.max_model_len));
  if (blocks_->blocks_for(length) > blocks_->num_blocks())
    return Status::resource_exhausted("prompt: " + std::to_string(r.prompt.size()) + " tokens need " +
                                      std::to_string(blocks_->blocks_for(length)) + " KV blocks, --kv-cache-memory holds " +
                                      std::to_string(blocks_->num_blocks()));
  if (!r.decode_method.empty() && method_index(r.decode_method) < 0) {
    std::string known;
    for (const MethodEntry& e : methods_) known += (known.empty() ? "" : ", ") + e.name;
    return Status::invalid_argument("decode method \"" + r.decode_method + "\" is not loaded; loaded: " + known);
  }
  if (r.budget_tokens < 0) return Status::invalid_argument("budget_tokens: " + std::to_string(r.budget_tokens) + " is negative");
  if (r.hold && (r.sampling.n != 1)) return Status::invalid_argument("hold: needs n = 1, not " + std::to_string(r.sampling.n));
  if (r.sampling.max_tokens == 0 && r.sampling.n != 1) return Status::invalid_argument("max_tokens: 0 needs n = 1");
  return {};
}

Result<RequestId> EngineImpl::submit(Request request) {
  FOVEA_TRY(check_request(request));
  std::lock_guard<std::mutex> lock(mutex_);
  if (inbox_.size() >= kInboxMax) return Status::busy("the queue holds " + std::to_string(kInboxMax) + " requests: try again later");
  const RequestId id{next_request_++};
  inbox_.push_back({id, std::move(request), clock_.now_s()});
  return id;
}

void EngineImpl::abort(RequestId id) {
  std::lock_guard<std::mutex> lock(mutex_);
  aborts_.push_back(id);
}

void EngineImpl::release(RequestId id) {
  std::lock_guard<std::mutex> lock(mutex_);
  releases_.push_back(id);
}

int64_t EngineImpl::computed_tokens(RequestId id) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = progress_.find(id);
  return it == progress_.end() ? 0 : it->second;
}

EngineStats EngineImpl::stats() const {
  EngineStats s;
  s.steps = steps_;
  s.blocks_total = blocks_->num_blocks();
  s.blocks_free = blocks_->num_free();
  s.blocks_in_use = s.blocks_total - s.blocks_free;
  s.block_bytes = kv_->bytes_per_block();
  const auto usage = blocks_->usage();
  s.slots_allocated = usage.allocated_slots;
  s.slots_used = usage.used_slots;
  s.swapped_bytes = int64_t{swap_->num_slots() - blocks_->num_swap_free()} * kv_->bytes_per_block();
  s.preemptions = scheduler_->stats().preempted_recompute + scheduler_->stats().preempted_swap;
  return s;
}

}  // namespace fovea
