#include "server/preparer.h"

#include "server/json_fields.h"

#include <algorithm>
#include <limits>

namespace fovea::server {
namespace {

using Json = nlohmann::ordered_json;

Prepared refused(const Status& status, int http_status = 0) {
  Prepared p;
  p.http_status = http_status ? http_status : http_status_of(status);
  p.error = status.message();
  return p;
}

Status check_model(const std::string& model, const std::vector<std::string>& names) {
  if (model.empty() || std::find(names.begin(), names.end(), model) != names.end()) return {};
  return Status::not_found("model: this server has no model of that name");
}

// The prompts' tokens, and their texts where the reply repeats them.
Status encode_prompts(const Engine& engine, const CompletionCall& call, std::vector<std::vector<TokenId>>* prompts,
                      std::vector<std::string>* echo) {
  if (call.is_chat) {
    FOVEA_ASSIGN(const std::string text, engine.apply_chat_template(call.chat));
    FOVEA_ASSIGN(std::vector<TokenId> ids, engine.tokenize(text));
    prompts->push_back(std::move(ids));
    return {};
  }
  for (const Prompt& p : call.prompts) {
    if (const auto* given = std::get_if<std::vector<TokenId>>(&p)) {
      const auto outside = std::find_if(given->begin(), given->end(), [&](TokenId t) { return t >= engine.model().vocab_size; });
      if (outside != given->end())
        return Status::invalid_argument("prompt: token " + std::to_string(*outside) + " is not in the vocabulary of " +
                                        std::to_string(engine.model().vocab_size));
      prompts->push_back(*given);
      if (call.echo) echo->push_back(engine.detokenize(*given));
    } else {
      const std::string& text = std::get<std::string>(p);
      FOVEA_ASSIGN(std::vector<TokenId> ids, engine.tokenize(text));
      prompts->push_back(std::move(ids));
      if (call.echo) echo->push_back(text);
    }
  }
  return {};
}

Prepared prepare_call(const Engine& engine, const CompletionCall& call, const std::vector<std::string>& names) {
  if (const Status s = check_model(call.model, names); !s.ok()) return refused(s, 404);
  Prepared p;
  std::vector<std::vector<TokenId>> prompts;
  if (const Status s = encode_prompts(engine, call, &prompts, &p.reply.echo); !s.ok())
    return refused(field_of(s.message()).empty() && call.is_chat ? s.with_context("messages") : s,
                   s.code() == StatusCode::internal ? 500 : 400);
  Request request;
  request.sampling = call.sampling.over(engine.model().sampling);
  request.sampling.max_tokens = call.max_tokens.value_or(std::numeric_limits<int32_t>::max());  // as many as fit
  request.decode_method = call.decode_method;
  request.prefill_method = call.prefill_method;
  request.budget_tokens = call.budget_tokens;
  request.trace = call.reading_map;  // else a GPU does not tell
  request.cache_salt = call.cache_salt;
  if (call.echo && request.sampling.logprobs) request.sampling.prompt_logprobs = request.sampling.logprobs;
  if (call.format != ReplyFormat::text) {
    auto grammar = engine.json_grammar(call.json_schema);
    if (!grammar.ok()) return refused(std::move(grammar).status().with_context("response_format"));
    request.grammar = std::move(*grammar);
  }
  const EngineOptions& o = engine.options();
  p.reply.is_chat = call.is_chat;
  p.reply.stream = call.stream;
  p.reply.include_usage = call.include_usage;
  p.reply.answers = request.sampling.n;
  p.reply.decode_method = call.decode_method.empty() ? o.decode_method : call.decode_method;
  p.reply.prefill_method = call.prefill_method.empty() ? o.prefill_method : call.prefill_method;
  p.reply.budget_tokens = call.budget_tokens;
  p.reply.tools = call.tools_allowed;
  p.reply.reading_map = call.reading_map;
  p.reply.block_tokens = o.block_size;
  p.reply.model = call.model.empty() ? names.front() : call.model;
  p.reply.token_bytes = [&engine](TokenId t) { return engine.token_bytes(t); };
  for (std::vector<TokenId>& ids : prompts) {
    p.reply.prompt_tokens.push_back(static_cast<int64_t>(ids.size()));
    p.requests.push_back(request);
    p.requests.back().prompt = std::move(ids);
  }
  return p;
}

// Texts of tokens that make the whole text together: the bytes of a character go to the token that completes it.
std::vector<std::string> token_texts(const Engine& engine, const std::vector<TokenId>& ids) {
  std::vector<std::string> texts;
  std::string open;  // the beginning of a character
  for (const TokenId id : ids) {
    open += engine.token_bytes(id);
    size_t complete = open.size();
    for (size_t back = 1; back <= std::min<size_t>(3, open.size()); ++back) {
      const auto byte = static_cast<unsigned char>(open[open.size() - back]);
      if ((byte & 0xC0) == 0x80) continue;
      const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
      if (length > back) complete = open.size() - back;
      break;
    }
    texts.push_back(open.substr(0, complete));
    open.erase(0, complete);
  }
  if (!texts.empty()) texts.back() += open;
  return texts;
}

Prepared prepare_tokenize(const Engine& engine, const TokenizeCall& call) {
  std::string text = call.prompt;
  if (call.is_chat) {
    Result<std::string> rendered = engine.apply_chat_template(call.chat);
    if (!rendered.ok()) return refused(std::move(rendered).status().with_context("messages"), 400);
    text = std::move(*rendered);
  }
  const Result<std::vector<TokenId>> ids = engine.tokenize(text);
  if (!ids.ok()) return refused(ids.status());
  Json reply = {{"count", ids->size()}, {"max_model_len", engine.model().max_model_len}, {"tokens", *ids}};
  if (call.token_strs) reply["token_strs"] = token_texts(engine, *ids);
  Prepared p;
  p.body = json_text(reply) + "\n";
  return p;
}

}  // namespace

Prepared prepare_body(const Engine& engine, PrepareKind kind, std::string_view body, const DecodeLimits& limits,
                      const std::vector<std::string>& model_names) {
  switch (kind) {
    case PrepareKind::chat: {
      const Result<CompletionCall> call = decode_chat(body, limits);
      return call.ok() ? prepare_call(engine, *call, model_names) : refused(call.status());
    }
    case PrepareKind::completion: {
      const Result<CompletionCall> call = decode_completion(body, limits);
      return call.ok() ? prepare_call(engine, *call, model_names) : refused(call.status());
    }
    case PrepareKind::tokenize: {
      const Result<TokenizeCall> call = decode_tokenize(body, limits);
      return call.ok() ? prepare_tokenize(engine, *call) : refused(call.status());
    }
    case PrepareKind::detokenize: {
      const Result<std::vector<TokenId>> ids = decode_detokenize(body, limits);
      if (!ids.ok()) return refused(ids.status());
      for (const TokenId t : *ids) {
        if (t >= engine.model().vocab_size)
          return refused(Status::invalid_argument("tokens: " + std::to_string(t) + " is not in the vocabulary"));
      }
      Prepared p;
      p.body = json_text(Json{{"prompt", engine.detokenize(*ids)}}) + "\n";
      return p;
    }
  }
  return {};
}

Preparer::Preparer(int threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

Preparer::~Preparer() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  arrived_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void Preparer::add(Task task) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  arrived_.notify_one();
}

void Preparer::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    arrived_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
    if (stopping_) return;
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

}  // namespace fovea::server
