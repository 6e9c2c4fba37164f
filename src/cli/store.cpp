// fovea store: what a directory of --kv-store holds, whether it is sound, and room.
#include "cli/commands.h"
#include "cli/flags.h"

#include <fovea/store.h>

#include <nlohmann/json.hpp>

#include <cstdio>
#include <ctime>
#include <iostream>
#include <memory>

namespace fovea::cli {
namespace {

using Json = nlohmann::ordered_json;

struct StoreFlags {
  std::string dir;
  uint64_t size = uint64_t{64} << 30;
  bool json = false;
};

std::string time_text(uint64_t unix_s) {
  const auto t = static_cast<std::time_t>(unix_s);
  std::tm local{};
  char text[32] = "";
  if (localtime_r(&t, &local)) std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
  return text;
}

std::string size_text(int64_t bytes) { return bytes_text(static_cast<double>(bytes)); }

std::string count_text(int64_t n, const char* one, const char* many) { return std::to_string(n) + " " + (n == 1 ? one : many); }

void print(const Json& json) { std::cout << json.dump(2) << "\n"; }

Status list(const StoreFlags& f) {
  FOVEA_ASSIGN(const StoreContents c, read_store(f.dir));
  if (f.json) {
    Json all = Json::array();
    for (const StoredDocument& d : c.documents) {
      all.push_back({{"key", d.key},
                     {"tokens", d.tokens},
                     {"blocks", d.blocks},
                     {"slabs", d.slabs},
                     {"bytes", d.bytes},
                     {"created_s", d.created_s},
                     {"used_s", d.used_s},
                     {"has_beginning", d.has_beginning}});
    }
    print(all);
    return {};
  }
  std::printf("%10s %8s %6s %12s  %-19s  %s\n", "tokens", "blocks", "slabs", "size", "last used", "last key");
  for (const StoredDocument& d : c.documents) {
    std::printf("%10lld %8lld %6lld %12s  %s  %.16s%s\n", static_cast<long long>(d.tokens), static_cast<long long>(d.blocks),
                static_cast<long long>(d.slabs), size_text(d.bytes).c_str(), time_text(d.used_s).c_str(), d.key.c_str(),
                d.has_beginning ? "" : "  (its beginning was removed)");
  }
  return {};
}

Status stat(const StoreFlags& f) {
  FOVEA_ASSIGN(const StoreContents c, read_store(f.dir));
  if (f.json) {
    Json parts = Json::array();
    for (const StoredPart& p : c.parts) {
      parts.push_back({{"name", p.name}, {"units", p.units}, {"unit_bytes", p.unit_bytes}, {"slabs", p.slabs}, {"bytes", p.bytes}});
    }
    print({{"slabs", c.slabs},
           {"blocks", c.blocks},
           {"bytes", c.bytes},
           {"documents", c.documents.size()},
           {"other_slabs", c.other_slabs},
           {"other_bytes", c.other_bytes},
           {"bad_slabs", c.bad_slabs},
           {"unfinished", c.unfinished},
           {"parts", parts}});
    return {};
  }
  std::printf("store      %s, %s\n", f.dir.c_str(), size_text(c.bytes).c_str());
  std::printf("holds      %s, %s in %s\n", count_text(static_cast<int64_t>(c.documents.size()), "document", "documents").c_str(),
              count_text(c.blocks, "block", "blocks").c_str(), count_text(c.slabs, "slab", "slabs").c_str());
  for (const StoredPart& p : c.parts) {
    std::printf("part       %s: %s, %u x %u bytes a block, in %s\n", p.name.c_str(), size_text(p.bytes).c_str(), p.units,
                p.unit_bytes, count_text(p.slabs, "slab", "slabs").c_str());
  }
  if (c.other_slabs > 0) {
    std::printf("beside it  %s, %s: of another version, not read, but within --kv-store-size\n",
                count_text(c.other_slabs, "slab", "slabs").c_str(), size_text(c.other_bytes).c_str());
  }
  if (c.bad_slabs > 0) std::printf("bad        %s\n", count_text(c.bad_slabs, "slab", "slabs").c_str());
  if (c.unfinished > 0) std::printf("unfinished %s\n", count_text(c.unfinished, "file", "files").c_str());
  return {};
}

// The last line is the verdict.
Result<bool> verify(const StoreFlags& f) {
  const auto tell = [&](const StoreDamage& d) {
    if (!f.json) std::printf("%s: %s\n", d.file.c_str(), d.fault.c_str());
  };
  FOVEA_ASSIGN(const StoreVerdict v, verify_store(f.dir, tell));
  const bool clean = v.damage.empty();
  if (f.json) {
    Json damage = Json::array();
    for (const StoreDamage& d : v.damage) damage.push_back({{"file", d.file}, {"fault", d.fault}});
    print({{"clean", clean},
           {"slabs", v.slabs},
           {"blocks", v.blocks},
           {"extents", v.extents},
           {"bytes", v.bytes},
           {"damage", damage}});
  } else if (clean) {
    std::printf("clean: %s, %s, %s, %s\n", count_text(v.slabs, "slab", "slabs").c_str(),
                count_text(v.blocks, "block", "blocks").c_str(), count_text(v.extents, "extent", "extents").c_str(),
                size_text(v.bytes).c_str());
  } else {
    std::printf("damaged: %zu of %s\n", v.damage.size(), count_text(v.slabs, "slab", "slabs").c_str());
  }
  return clean;
}

Status collect(const StoreFlags& f) {
  FOVEA_ASSIGN(const StoreCollected c, collect_store(f.dir, static_cast<int64_t>(f.size)));
  if (f.json) {
    print({{"removed_slabs", c.removed_slabs}, {"removed_bytes", c.removed_bytes}, {"left_bytes", c.left_bytes}});
  } else {
    std::printf("removed %s, %s; %s are left\n", count_text(c.removed_slabs, "slab", "slabs").c_str(),
                size_text(c.removed_bytes).c_str(), size_text(c.left_bytes).c_str());
  }
  return {};
}

int code_of(const Status& status) { return status.ok() ? 0 : report(status); }

}  // namespace

Run add_store(CLI::App& app) {
  auto f = std::make_shared<StoreFlags>();
  CLI::App* cmd = app.add_subcommand("store", "List, verify and clean up a directory of stored KV blocks");
  cmd->require_subcommand(1);
  const auto add = [&](const char* name, const char* about) {
    CLI::App* sub = cmd->add_subcommand(name, about);
    sub->add_option("--kv-store", f->dir, "The store's directory")->required();
    sub->add_flag("--json", f->json, "Print JSON instead of text");
    return sub;
  };
  CLI::App* ls = add("ls", "List the documents: tokens, size, last use");
  CLI::App* st = add("stat", "Show totals");
  CLI::App* ver = add("verify", "Read and check every byte; the last line is the verdict. Exit code 0: clean, 1: damaged");
  CLI::App* gc =
      add("gc", "Remove damaged and unfinished files, then the least recently used ones until the store fits --kv-store-size");
  gc->add_option("--kv-store-size", f->size, "Maximum size to keep, e.g. 10G (default 64G)")->transform(CLI::AsSizeValue(false));
  return [=] {
    if (ls->parsed()) return code_of(list(*f));
    if (st->parsed()) return code_of(stat(*f));
    if (gc->parsed()) return code_of(collect(*f));
    const Result<bool> clean = ver->parsed() ? verify(*f) : Result<bool>(true);
    if (!clean.ok()) return report(clean.status());
    return *clean ? 0 : kFailure;
  };
}

}  // namespace fovea::cli
