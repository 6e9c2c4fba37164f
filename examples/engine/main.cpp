// Reads a document once and answers a question about it. Usage: ask MODEL_DIR TEXT_FILE QUESTION
#include <fovea/session.h>

#include <cstdio>
#include <fstream>
#include <iterator>

namespace {

fovea::Result<std::string> answer(const std::string& model, std::string document, const std::string& question) {
  fovea::EngineOptions options;
  options.model_dir = model;
  FOVEA_ASSIGN(const auto engine, fovea::Engine::create(options));
  FOVEA_ASSIGN(const auto session, fovea::DocumentSession::open(*engine, std::move(document), nullptr));
  fovea::SamplingParams sampling;
  sampling.max_tokens = 64;
  FOVEA_ASSIGN(const auto answers, session->ask({{.text = question}}, sampling, nullptr));
  FOVEA_TRY(answers[0].error);
  return answers[0].text;
}

}  // namespace

int main(int argc, char** argv) {
  std::ifstream file(argc == 4 ? argv[2] : "");
  if (!file) {
    std::fprintf(stderr, "usage: ask MODEL_DIR TEXT_FILE QUESTION\n");
    return 2;
  }
  const auto text = answer(argv[1], {std::istreambuf_iterator<char>(file), {}}, argv[3]);
  std::printf("%s\n", text.ok() ? text->c_str() : text.status().message().c_str());
  return text.ok() ? 0 : 1;
}
