#include "server/documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <thread>

namespace fovea::server {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

Document document(const std::string& text) {
  Document d;
  d.text = text;
  d.tokens = {1, 2, 300000};
  return d;
}

std::string put(Documents& documents, Document d, int64_t now = 100) {
  const auto put = documents.put(std::move(d), now);
  EXPECT_TRUE(put.ok()) << put.status().message();
  return put.ok() ? (*put)->id : "";
}

class DocumentsTest : public testing::Test {
 protected:
  DocumentsTest() {
    char name[] = "/tmp/fovea_documents_XXXXXX";
    root_ = ::mkdtemp(name);
    dir_ = root_ + "/documents";
  }
  ~DocumentsTest() override { fs::remove_all(root_); }

  void open(Documents& documents, int64_t now = 100, bool readonly = false) {
    notes_.clear();
    const Status s = documents.open(dir_, readonly, now, &notes_);
    EXPECT_TRUE(s.ok()) << s.message();
  }
  std::string path(const std::string& id) const { return dir_ + "/" + id + ".json"; }

  std::string root_, dir_;
  std::vector<std::string> notes_;
};

TEST_F(DocumentsTest, AnIdIsOfContentAndSaltAlone) {
  Document a = document("x");
  const std::string id = document_id(a);
  EXPECT_EQ(id.size(), 36u);
  EXPECT_THAT(id, StartsWith("doc-"));
  a.name = "other";
  a.tokens.clear();
  a.expires_s = 5;
  EXPECT_EQ(document_id(a), id);
  for (std::string Document::*part : {&Document::owner, &Document::salt, &Document::system, &Document::prefill_method}) {
    Document b = document("x");
    b.*part = "y";
    EXPECT_NE(document_id(b), id);
  }
  Document left = document(""), right = document("");  // where one part ends and the next begins counts
  left.salt = "ab";
  right.salt = "a";
  right.system = "b";
  EXPECT_NE(document_id(left), document_id(right));
}

TEST_F(DocumentsTest, WhatIsPutIsFoundAgainAfterARestart) {
  std::string id;
  {
    Documents documents(10, 1 << 20);
    open(documents);
    EXPECT_FALSE(fs::exists(dir_));
    Document d = document("täxt \n");
    d.name = "n";
    d.system = "s";
    d.salt = "t";
    d.owner = "o";
    d.prefill_method = "dense";
    d.expires_s = 1000;
    id = put(documents, std::move(d));
  }
  struct stat info;
  ASSERT_EQ(::stat(path(id).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  ASSERT_EQ(::stat(dir_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  Documents documents(10, 1 << 20);
  open(documents);
  const auto d = documents.find(id, "o", 999);
  ASSERT_TRUE(d);
  EXPECT_EQ(d->text, "täxt \n");
  EXPECT_EQ(d->name + d->system + d->salt + d->owner + d->prefill_method, "nstodense");
  EXPECT_THAT(d->tokens, ElementsAre(1, 2, 300000));
  EXPECT_EQ(d->created_s, 100);
  EXPECT_EQ(d->expires_s, 1000);
  EXPECT_FALSE(documents.find(id, "", 999)) << "another's";
  EXPECT_FALSE(documents.find(id, "o", 1000)) << "it has expired";
  EXPECT_EQ(documents.list("o", "t", 999).size(), 1u);
  EXPECT_TRUE(documents.list("o", "", 999).empty());
  EXPECT_TRUE(documents.list("", "t", 999).empty());
  EXPECT_TRUE(documents.list("o", "t", 1000).empty());
}

TEST_F(DocumentsTest, PuttingItAgainRenewsIt) {
  Documents documents(1, 1 << 20);
  open(documents);
  Document d = document("x");
  d.expires_s = 200;
  const std::string id = put(documents, d, 100);
  d.expires_s = 500;
  d.name = "new";
  EXPECT_EQ(put(documents, d, 150), id);
  EXPECT_EQ(documents.size(), 1u);
  Documents again(1, 1 << 20);
  open(again, 300);
  const auto found = again.find(id, "", 300);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->name, "new");
  EXPECT_EQ(found->created_s, 100);
  EXPECT_EQ(found->expires_s, 500);
}

TEST_F(DocumentsTest, WhatIsRemovedOrExpiredLeavesNoFile) {
  Documents documents(10, 1 << 20);
  open(documents);
  Document brief = document("brief");
  brief.expires_s = 200;
  const std::string expiring = put(documents, brief), removed = put(documents, document("removed")),
                    kept = put(documents, document("kept"));
  EXPECT_TRUE(documents.remove(removed).ok());
  EXPECT_TRUE(documents.remove(removed).ok());
  EXPECT_THAT(documents.expire(199), ElementsAre());
  EXPECT_TRUE(fs::exists(path(expiring)));
  EXPECT_THAT(documents.expire(200), ElementsAre(expiring));
  EXPECT_FALSE(fs::exists(path(removed)));
  EXPECT_FALSE(fs::exists(path(expiring)));
  EXPECT_TRUE(fs::exists(path(kept)));
  // One that expired while nobody served.
  put(documents, brief);
  Documents later(10, 1 << 20);
  open(later, 300);
  EXPECT_FALSE(fs::exists(path(expiring)));
  EXPECT_EQ(later.size(), 1u);
}

TEST_F(DocumentsTest, DamagedFilesAreLeftOutAndLeftAlone) {
  std::string id;
  {
    Documents documents(10, 1 << 20);
    open(documents);
    id = put(documents, document("text"));
  }
  std::ifstream in(path(id), std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  std::ofstream(dir_ + "/1.tmp") << "half";
  // Each beginning of the file, and each byte of it changed: never another document, never a crash.
  const auto opened = [&](const std::string& bytes) {
    std::ofstream(path(id), std::ios::binary | std::ios::trunc) << bytes;
    Documents documents(10, 1 << 20);
    open(documents);
    EXPECT_EQ(documents.size() + notes_.size(), 1u);
    if (const auto d = documents.find(id, "", 100)) EXPECT_EQ(d->text, "text");
    return documents.size();
  };
  for (size_t n = 0; n + 2 < whole.size(); ++n) EXPECT_EQ(opened(whole.substr(0, n)), 0u) << n;
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 0x15);
    opened(changed);
  }
  EXPECT_FALSE(fs::exists(dir_ + "/1.tmp"));
  EXPECT_EQ(opened(whole), 1u);
  fs::rename(path(id), path("doc-0"));
  Documents documents(10, 1 << 20);
  open(documents);
  EXPECT_EQ(documents.size(), 0u);
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("not that of the file's name")));
}

TEST_F(DocumentsTest, ThereAreBounds) {
  Documents few(2, 1 << 20);
  put(few, document("a"));
  put(few, document("b"));
  Result<std::shared_ptr<const Document>> third = few.put(document("c"), 100);
  EXPECT_EQ(third.status().code(), StatusCode::busy);
  EXPECT_THAT(third.status().message(), HasSubstr("--max-documents"));
  put(few, document("a"));  // it is there
  Documents small(10, 2000);
  put(small, document(std::string(1000, 'x')));
  third = small.put(document(std::string(1001, 'x')), 100);
  EXPECT_EQ(third.status().code(), StatusCode::busy);
  EXPECT_THAT(third.status().message(), HasSubstr("--max-documents-size"));
  EXPECT_TRUE(small.remove(document_id(document(std::string(1000, 'x')))).ok());
  put(small, document(std::string(1001, 'x')));
}

TEST_F(DocumentsTest, AReadOnlyStoreIsNotChanged) {
  Documents writer(10, 1 << 20);
  open(writer);
  Document brief = document("brief");
  brief.expires_s = 200;
  const std::string expiring = put(writer, brief), id = put(writer, document("text"));
  Documents reader(10, 1 << 20);
  open(reader, 300, /*readonly=*/true);
  EXPECT_EQ(reader.size(), 1u);
  const std::string own = put(reader, document("own"), 300);
  EXPECT_TRUE(reader.find(own, "", 300));
  EXPECT_TRUE(reader.remove(id).ok());
  EXPECT_TRUE(fs::exists(path(id)) && fs::exists(path(expiring)) && !fs::exists(path(own)));
}

TEST_F(DocumentsTest, ADiskThatRefusesIsTold) {
  Documents documents(10, 1 << 20);
  open(documents);
  std::ofstream(dir_) << "a file where the folder belongs";
  const auto put = documents.put(document("x"), 100);
  EXPECT_EQ(put.status().code(), StatusCode::io_error);
  EXPECT_EQ(documents.size(), 0u);
}

TEST_F(DocumentsTest, ManyMayPutAtOnce) {
  Documents documents(100, 1 << 20);
  open(documents);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 10; ++i) {
        put(documents, document(std::to_string(t % 2 * 10 + i)));
        (void)documents.list("", "", 100);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(documents.size(), 20u);
  Documents again(100, 1 << 20);
  open(again);
  EXPECT_EQ(again.size(), 20u);
  EXPECT_TRUE(notes_.empty());
}

}  // namespace
}  // namespace fovea::server
