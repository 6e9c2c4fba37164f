#include "server/preparer.h"

#include "server/json_fields.h"

#include <fovea/session.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
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

// Those of the model's chat template.
Result<std::vector<TokenId>> chat_tokens(const Engine& engine, const ChatInput& chat) {
  FOVEA_ASSIGN(const std::string text, engine.apply_chat_template(chat));
  return engine.tokenize(text);
}

// The document's text before the first user's message, and its system message where the chat has none.
Status put_document_before(const Document& d, ChatInput* chat) {
  auto& messages = chat->messages;
  const auto user = std::find_if(messages.begin(), messages.end(), [](const ChatMessage& m) { return m.role == "user"; });
  if (user == messages.end()) return Status::invalid_argument("messages: there is none of a user, who asks fovea.document");
  user->content = d.text + "\n\n" + user->content;
  if (!d.system.empty() && messages.front().role != "system")
    messages.insert(messages.begin(), ChatMessage{.role = "system", .content = d.system});
  return {};
}

// Of the engine: those of two owners never meet.
std::string engine_salt(const std::string& owner, const std::string& salt) { return owner.empty() ? salt : owner + ":" + salt; }

std::shared_ptr<const HeldPrompt> held_prompt(const Document& d, const Caller& caller) {
  auto held = std::make_shared<HeldPrompt>();
  held->name = d.id;
  held->request.prompt = d.tokens;
  held->request.prefill_method = d.prefill_method;
  held->request.cache_salt = engine_salt(d.owner, d.salt);
  held->request.fairness_key = caller.fairness_key;
  return held;
}

// The prompts' tokens, and their texts where the reply repeats them.
Status encode_prompts(const Engine& engine, const CompletionCall& call, std::vector<std::vector<TokenId>>* prompts,
                      std::vector<std::string>* echo) {
  if (call.is_chat) {
    FOVEA_ASSIGN(std::vector<TokenId> ids, chat_tokens(engine, call.chat));
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

// JSON that the answer has to be, or null.
Result<std::shared_ptr<const TokenGrammar>> grammar_of(const Engine& engine, const CompletionCall& call) {
  if (call.tool_schema.empty() && call.format == ReplyFormat::text) return std::shared_ptr<const TokenGrammar>();
  const bool is_call = !call.tool_schema.empty();
  if (call.sampling.rest.min_tokens > 0)
    return Status::invalid_argument(std::string("min_tokens: not with ") +
                                    (is_call ? "a call that is required" : "response_format") +
                                    ", which says alone where an answer ends");
  auto grammar = engine.json_grammar(is_call ? call.tool_schema : call.json_schema);
  if (!grammar.ok()) return std::move(grammar).status().with_context(is_call ? "tools" : "response_format");
  return grammar;
}

Request request_of(const Engine& engine, const CompletionCall& call, const Caller& caller) {
  Request request;
  request.sampling = call.sampling.over(engine.model().sampling);
  request.sampling.max_tokens = call.max_tokens.value_or(std::numeric_limits<int32_t>::max());  // as many as fit
  request.decode_method = call.decode_method;
  request.prefill_method = call.prefill_method;
  request.budget_tokens = call.budget_tokens;
  request.trace = call.reading_map;  // else a GPU does not tell
  request.cache_salt = engine_salt(caller.owner, call.cache_salt);
  request.fairness_key = caller.fairness_key;
  if (call.echo && request.sampling.logprobs && !request.sampling.prompt_logprobs)
    request.sampling.prompt_logprobs = request.sampling.logprobs;
  return request;
}

ReplyOptions reply_of(const Engine& engine, const CompletionCall& call, const std::vector<std::string>& names) {
  const EngineOptions& o = engine.options();
  ReplyOptions reply;
  reply.is_chat = call.is_chat;
  reply.stream = call.stream;
  reply.include_usage = call.include_usage;
  reply.answers = call.sampling.rest.n;
  reply.decode_method = call.decode_method.empty() ? o.decode_method : call.decode_method;
  reply.prefill_method = call.prefill_method.empty() ? o.prefill_method : call.prefill_method;
  reply.budget_tokens = call.budget_tokens;
  reply.tools = call.tools;
  reply.logprobs = call.sampling.rest.logprobs.has_value();
  reply.prompt_logprobs = call.sampling.rest.prompt_logprobs.has_value();
  reply.reading_map = call.reading_map;
  reply.block_tokens = o.block_size;
  reply.model = call.model.empty() ? names.front() : call.model;
  reply.token_bytes = [&engine](TokenId t) { return engine.token_bytes(t); };
  return reply;
}

// A chat's prompt continues the document's tokens: they need not come with it.
void continue_document(const Document& d, const Caller& caller, Prepared* p) {
  Request& r = p->requests[0];
  const bool begins = r.prompt.size() > d.tokens.size() && std::equal(d.tokens.begin(), d.tokens.end(), r.prompt.begin());
  // Another system message, other tools, a model that changed: then it is a prompt like others. So it is where all of its rows are
  // asked for.
  if (!begins || d.tokens.empty() || r.sampling.prompt_logprobs) return;
  r.prompt.erase(r.prompt.begin(), r.prompt.begin() + static_cast<int64_t>(d.tokens.size()));
  p->begins_with = held_prompt(d, caller);
}

Prepared prepare_call(const Engine& engine, CompletionCall call, const PrepareScope& scope, const Documents& documents,
                      const Caller& caller) {
  if (const Status s = check_model(call.model, scope.model_names); !s.ok()) return refused(s, 404);
  Prepared p;
  if (!call.document.empty()) {
    p.document = documents.find(call.document, caller.owner, std::time(nullptr));
    if (!p.document || p.document->salt != call.cache_salt)
      return refused(Status::not_found("fovea.document: there is none of this id, cache_salt and key"), 404);
    if (const Status s = put_document_before(*p.document, &call.chat); !s.ok()) return refused(s);
    if (call.prefill_method.empty()) call.prefill_method = p.document->prefill_method;
  }
  p.reply = reply_of(engine, call, scope.model_names);
  std::vector<std::vector<TokenId>> prompts;
  if (const Status s = encode_prompts(engine, call, &prompts, &p.reply.echo); !s.ok())
    return refused(field_of(s.message()).empty() && call.is_chat ? s.with_context("messages") : s,
                   s.code() == StatusCode::internal ? 500 : 400);
  Request request = request_of(engine, call, caller);
  auto grammar = grammar_of(engine, call);
  if (!grammar.ok()) return refused(grammar.status());
  request.grammar = std::move(*grammar);
  for (std::vector<TokenId>& ids : prompts) {
    p.reply.prompt_tokens.push_back(static_cast<int64_t>(ids.size()));
    if (scope.log_prompts) p.prompt_log += (p.prompt_log.empty() ? "" : "\n") + engine.detokenize(ids);
    p.requests.push_back(request);
    p.requests.back().prompt = std::move(ids);
  }
  if (p.document) continue_document(*p.document, caller, &p);
  return p;
}

Prepared prepare_document(const Engine& engine, DocumentCall call, const PrepareScope& scope, Documents& documents,
                          const Caller& caller) {
  Document d;
  d.owner = caller.owner;
  d.salt = std::move(call.cache_salt);
  d.system = std::move(call.system);
  d.prefill_method = std::move(call.prefill_method);
  d.text = std::move(call.text);
  d.name = std::move(call.name);
  ChatInput chat;
  if (!d.system.empty()) chat.messages.push_back({.role = "system", .content = d.system});
  chat.messages.push_back({.role = "user", .content = d.text});
  Result<std::vector<TokenId>> tokens = document_prefix(engine, std::move(chat));
  if (!tokens.ok()) return refused(std::move(tokens).status().with_context("text"), 400);
  d.tokens = std::move(*tokens);
  if (d.tokens.empty() || static_cast<int64_t>(d.tokens.size()) >= engine.model().max_model_len)
    return refused(Status::invalid_argument("text: " + std::to_string(d.tokens.size()) +
                                            " tokens; there must be some, and fewer than " +
                                            std::to_string(engine.model().max_model_len)));
  const int64_t now = std::time(nullptr), ttl = call.expires_after_s.value_or(scope.document_ttl_s);
  d.expires_s = ttl == 0 ? 0 : now + ttl;
  Result<std::shared_ptr<const Document>> put = documents.put(std::move(d), now);
  if (!put.ok() && put.status().code() == StatusCode::io_error) {
    std::fprintf(stderr, "fovea: a document was not kept: %s\n", put.status().message().c_str());
    return refused(Status::internal("the document could not be written to the server's disk"));
  }
  if (!put.ok()) return refused(put.status());
  Prepared p;
  p.document = std::move(*put);
  p.begins_with = held_prompt(*p.document, caller);
  p.wait = call.wait;
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

Prepared prepare_body(const Engine& engine, PrepareKind kind, std::string_view body, const PrepareScope& scope,
                      Documents& documents, const Caller& caller) {
  const DecodeLimits& limits = scope.limits;
  switch (kind) {
    case PrepareKind::chat:
    case PrepareKind::completion: {
      Result<CompletionCall> call = kind == PrepareKind::chat ? decode_chat(body, limits) : decode_completion(body, limits);
      return call.ok() ? prepare_call(engine, *std::move(call), scope, documents, caller) : refused(call.status());
    }
    case PrepareKind::document: {
      Result<DocumentCall> call = decode_document(body, limits);
      return call.ok() ? prepare_document(engine, *std::move(call), scope, documents, caller) : refused(call.status());
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
