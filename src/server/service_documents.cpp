// /v1/documents: put once, asked by id (fovea.document of a chat). docs/server.md says what they promise.
#include "server/service.h"

#include "server/json_fields.h"

#include <ctime>
#include <optional>
#include <utility>

namespace fovea::server {
namespace {

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// The value of a query's `name`, its percent signs resolved; empty: there is none.
std::string query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    const size_t equals = pair.find('=');
    if (equals == std::string_view::npos || pair.substr(0, equals) != name) continue;
    std::string value;
    for (size_t i = equals + 1; i < pair.size(); ++i) {
      const bool escaped = pair[i] == '%' && i + 2 < pair.size() && hex_value(pair[i + 1]) >= 0 && hex_value(pair[i + 2]) >= 0;
      value += escaped ? static_cast<char>(hex_value(pair[i + 1]) * 16 + hex_value(pair[i + 2])) : pair[i] == '+' ? ' ' : pair[i];
      if (escaped) i += 2;
    }
    return value;
  }
  return "";
}

// `held`: where its KV stands; null: it is not held, and is read when it is asked.
Json document_reply(const Document& d, const HeldState* held, const std::string& prefill_method) {
  Json ours = {{"prefill_method", d.prefill_method.empty() ? prefill_method : d.prefill_method}};
  if (held && held->ready) {
    ours["computed_tokens"] = held->stats.computed_tokens();
    ours["cached_tokens"] = held->stats.cached_tokens;
    ours["loaded_tokens"] = held->stats.loaded_tokens;
  } else if (held) {
    ours["computed_tokens"] = held->computed_tokens;
  }
  return {{"id", d.id},
          {"object", "document"},
          {"name", d.name},
          {"created_at", d.created_s},
          {"expires_at", d.expires_s == 0 ? Json() : Json(d.expires_s)},
          {"bytes", d.text.size()},
          {"tokens", d.tokens.size()},
          {"status", !held         ? "stored"
                     : held->ready ? "ready"
                                   : "reading"},
          {"fovea", std::move(ours)}};
}

Json document_reply(const Document& d, const std::map<std::string, HeldState>& held, const std::string& prefill_method) {
  const auto it = held.find(d.id);
  return document_reply(d, it == held.end() ? nullptr : &it->second, prefill_method);
}

HttpReply json_reply(const Json& body) {
  HttpReply r;
  r.body = json_text(body) + "\n";
  return r;
}

constexpr const char* kUnknown = "there is no such document";

}  // namespace

void Service::list_documents(ExchangeId id, const Call& call) {
  if (!ready_) return fail(id, 503, "the model is being loaded: try again later");
  Json list = {{"object", "list"}, {"data", Json::array()}};
  const std::string salt = query_value(call.request.query, "cache_salt");
  const std::map<std::string, HeldState> held = loop_.held();
  for (const auto& d : documents_.list(caller_of(call.request).owner, salt, std::time(nullptr)))
    list["data"].push_back(document_reply(*d, held, loop_.engine()->options().prefill_method));
  reply(id, json_reply(list));
}

void Service::get_document(ExchangeId id, const Call& call, const std::string& document) {
  if (!ready_) return fail(id, 503, "the model is being loaded: try again later");
  const auto d = documents_.find(document, caller_of(call.request).owner, std::time(nullptr));
  if (!d) return fail(id, 404, kUnknown, "id");
  reply(id, json_reply(document_reply(*d, loop_.held(), loop_.engine()->options().prefill_method)));
}

void Service::delete_document(ExchangeId id, const Call& call, const std::string& document) {
  if (!ready_) return fail(id, 503, "the model is being loaded: try again later");
  if (!documents_.find(document, caller_of(call.request).owner, std::time(nullptr))) return fail(id, 404, kUnknown, "id");
  const Status removed = documents_.remove(document);
  loop_.drop(document);
  if (!removed.ok()) {
    std::fprintf(stderr, "fovea: a document was not removed: %s\n", removed.message().c_str());
    return fail(id, 500, "the document could not be removed from the server's disk");
  }
  reply(id, json_reply({{"id", document}, {"object", "document.deleted"}, {"deleted", true}}));
}

// It is known from now on, and read.
void Service::document_put(ExchangeId id, Call& call, Prepared p) {
  call.prompt_tokens = static_cast<int64_t>(p.document->tokens.size());
  if (!p.wait) {
    loop_.start({.call = 0, .begins_with = std::move(p.begins_with)});
    const HeldState reading;
    return reply(id, json_reply(document_reply(*p.document, &reading, loop_.engine()->options().prefill_method)));
  }
  call.document = std::move(p.document);
  call.started = true;
  loop_.start({.call = id, .begins_with = std::move(p.begins_with)});
}

void Service::document_read(Calls::iterator call, const Output& out) {
  const std::string id = call->second.document->id;
  if (const int status = http_status_of(out.error); status != 200) {
    if (status == 400) (void)documents_.remove(id);  // nobody could ever ask it
    return end_broken(call, status, client_message(out.error));
  }
  reply(call->first, json_reply(document_reply(*call->second.document, loop_.held(), loop_.engine()->options().prefill_method)));
}

void Service::expire_documents() {
  if (!ready_) return;
  for (const std::string& id : documents_.expire(std::time(nullptr))) loop_.drop(id);
}

}  // namespace fovea::server
