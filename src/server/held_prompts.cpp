#include "server/held_prompts.h"

#include <algorithm>
#include <utility>

namespace fovea::server {

namespace {

int64_t tokens_to_keep(const Engine& engine) {
  const int64_t block = engine.options().block_size, all = engine.stats().blocks_total * block;
  return std::min(all / 2, all - engine.model().max_model_len - block);
}

}  // namespace

HeldPrompts::HeldPrompts(Engine& engine) : engine_(engine), tokens_max_(tokens_to_keep(engine)) {}

HeldPrompts::Place HeldPrompts::place_of(const std::string& name) {
  return std::find_if(held_.begin(), held_.end(), [&](const Held& h) { return h.prompt->name == name; });
}

HeldPrompts::Held* HeldPrompts::find(const std::string& name) {
  const Place place = place_of(name);
  return place == held_.end() ? nullptr : &*place;
}

HeldPrompts::Held* HeldPrompts::find(RequestId id) {
  const auto place = std::find_if(held_.begin(), held_.end(), [&](const Held& h) { return h.id == id; });
  return place == held_.end() ? nullptr : &*place;
}

Result<HeldPrompts::Held*> HeldPrompts::want(std::shared_ptr<const HeldPrompt> prompt) {
  if (const Place place = place_of(prompt->name); place != held_.end()) {
    held_.splice(held_.end(), held_, place);
    return &held_.back();
  }
  Held h;
  h.tokens = static_cast<int64_t>(prompt->request.prompt.size());
  int64_t others = 0;
  for (const Held& other : held_) others += other.kept ? other.tokens : 0;
  for (Place place = held_.begin(); place != held_.end() && h.tokens <= tokens_max_ && others + h.tokens > tokens_max_;) {
    const Place one = place++;
    if (!one->ready) continue;  // calls wait for it
    others -= one->tokens;
    erase(one);
  }
  h.kept = others + h.tokens <= tokens_max_;
  Request r = prompt->request;
  r.hold = h.kept;
  r.sampling.max_tokens = 0;
  FOVEA_ASSIGN(h.id, engine_.submit(std::move(r)));
  h.prompt = std::move(prompt);
  held_.push_back(std::move(h));
  return &held_.back();
}

void HeldPrompts::erase(Place place) {
  if (!place->ready) engine_.abort(place->id);
  if (place->kept) engine_.release(place->id);
  held_.erase(place);
}

void HeldPrompts::drop(const std::string& name) {
  if (const Place place = place_of(name); place != held_.end()) erase(place);
}

}  // namespace fovea::server
