// Prompts that are computed once and kept in the engine's cache for requests that continue them. Of the thread that steps.
#pragma once

#include <fovea/engine.h>

#include <cstdint>
#include <list>
#include <memory>
#include <string>

namespace fovea::server {

// What calls begin with. Those of one name are the same.
struct HeldPrompt {
  std::string name;
  Request request;  // its prompt, method, salt and key; the rest is set when it is submitted
};

class HeldPrompts {
 public:
  struct Held {
    std::shared_ptr<const HeldPrompt> prompt;
    RequestId id;
    bool kept = false;   // else there was no room to keep it: its blocks are only found in the prefix cache
    bool ready = false;  // it was read
    int64_t tokens = 0, computed = 0;
    RequestStats stats;  // of its reading, once it is ready
  };

  // Keeps at most half of the cache, and leaves room for one sequence of --max-model-len: others give way to it, these do not.
  explicit HeldPrompts(Engine& engine);

  // The one of this name: there, or begun now, for which others that were not asked for longest give up their place.
  // Errors: those of submit().
  Result<Held*> want(std::shared_ptr<const HeldPrompt> prompt);
  // Null: there is none. Pointers hold until the entry is dropped, or another one is wanted.
  Held* find(const std::string& name);
  Held* find(RequestId id);
  // Its blocks go back; one that is being read ends.
  void drop(const std::string& name);
  bool empty() const { return held_.empty(); }
  const std::list<Held>& all() const { return held_; }

 private:
  using Place = std::list<Held>::iterator;
  Place place_of(const std::string& name);
  void erase(Place place);

  Engine& engine_;
  const int64_t tokens_max_;
  std::list<Held> held_;  // asked for last: at the end
};

}  // namespace fovea::server
