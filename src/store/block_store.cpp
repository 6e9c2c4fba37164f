#include "store/block_store.h"

namespace fovea {

Status ChannelSource::read_now(ReadBatch& batch) {
  Status status;
  while ((status = channel_->submit(batch)).code() == StatusCode::busy) channel_->poll();
  return status.ok() ? channel_->wait(batch, 1e30) : status;
}

}  // namespace fovea
