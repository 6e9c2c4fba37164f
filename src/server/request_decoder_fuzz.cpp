// libFuzzer: bodies of requests and files of documents; the first byte says of which. What is accepted lies within the limits, errors
// are one line, and no input may crash, hang or read outside itself. Corpus: tests/fuzz/request_decoder.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "server/documents.h"
#include "server/request_decoder.h"

namespace {

void check(const fovea::server::CompletionCall& call, const fovea::server::DecodeLimits& limits) {
  const fovea::SamplingParams& s = call.sampling.rest;
  FOVEA_CHECK(s.n >= 1 && s.n <= static_cast<int32_t>(limits.answers));
  FOVEA_CHECK(s.stop.size() <= limits.stops && s.min_tokens >= 0 && call.budget_tokens >= 0);
  FOVEA_CHECK(!call.sampling.temperature || (*call.sampling.temperature >= 0 && *call.sampling.temperature <= 2));
  FOVEA_CHECK(!call.sampling.top_p || (*call.sampling.top_p > 0 && *call.sampling.top_p <= 1));
  FOVEA_CHECK(call.is_chat ? !call.chat.messages.empty() : !call.prompts.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace fovea::server;
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  const DecodeLimits limits;
  fovea::Status status;
  if (bytes[0] % 6 < 2) {
    const auto call = bytes[0] % 6 == 0 ? decode_chat(body, limits) : decode_completion(body, limits);
    if (call.ok()) check(*call, limits);
    status = call.ok() ? fovea::Status() : call.status();
  } else if (bytes[0] % 6 == 2) {
    const auto call = decode_tokenize(body, limits);
    status = call.ok() ? fovea::Status() : call.status();
  } else if (bytes[0] % 6 == 4) {
    const auto call = decode_document(body, limits);
    if (call.ok())
      FOVEA_CHECK(!call->text.empty() && call->text.size() <= limits.prompt_bytes && call->expires_after_s.value_or(0) >= 0);
    status = call.ok() ? fovea::Status() : call.status();
  } else if (bytes[0] % 6 == 5) {
    const auto document = parse_document(body);
    if (document.ok()) {
      const auto again = parse_document(document_json(*document));
      FOVEA_CHECK(again.ok() && again->id == document_id(*document) && again->tokens == document->tokens);
    }
    status = document.ok() ? fovea::Status() : document.status();
  } else {
    const auto ids = decode_detokenize(body, limits);
    status = ids.ok() ? fovea::Status() : ids.status();
  }
  FOVEA_CHECK(status.message().find('\n') == std::string::npos && status.message().size() < 400);
  return 0;
}
