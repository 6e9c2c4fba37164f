#include "store/block_store.h"

namespace fovea {

Status ChannelSource::read_now(ReadBatch& batch) {
  FOVEA_TRY(begin(batch));
  return finish(batch);
}

Status ChannelSource::begin(ReadBatch& batch) {
  for (;;) {
    Status status = channel_->submit(batch);
    if (status.code() != StatusCode::busy) return status;
    channel_->poll();
  }
}

Status ChannelSource::finish(ReadBatch& batch) { return channel_->wait(batch, 1e30); }

}  // namespace fovea
