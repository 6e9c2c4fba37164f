// ReadHelpers: threads that a store lends to its channels, for what takes time but no channel of its own: copying out of the page
// cache, and digests. They are the store's: they begin with the first invitation and end with it. A channel's own thread does the
// same work while it waits, so what is asked for is done even if no helper ever comes.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

namespace fovea {

class ReadHelpers {
 public:
  // What a helper is invited to.
  class Work {
   public:
    virtual ~Work() = default;
    virtual void help() = 0;  // on several threads at once; returns when there is nothing left to begin
  };

  explicit ReadHelpers(int threads) : most_(threads) {}
  ~ReadHelpers();  // nobody is invited any more

  int threads() const { return most_; }
  // So many helpers come as they get free, at most as many as there are. Any thread.
  void invite(Work& work, size_t helpers);
  // Nobody is inside it nor will come any more.
  void dismiss(Work& work);

 private:
  void run();

  const int most_;
  std::mutex mutex_;  // guards all below
  std::condition_variable wake_, left_;
  std::deque<Work*> invited_;              // one entry for each helper that is to come
  std::unordered_map<Work*, int> inside_;  // helpers
  std::vector<std::thread> threads_;
  bool stop_ = false;
};

}  // namespace fovea
