// Text to train on: files, folders and globs, joined in an order that depends on nothing but their names.
//
// The app resolves each entry of `data.text` and calls load_text(); every fault of every entry becomes an Issue, so
// that the user sees them all at once. A Text remembers which file each byte came from, so that a tokenizer can name
// the file and the byte that it cannot read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/base/error.hpp"

namespace cleave::data {

/// One entry of `data.text` or the value of `data.tokens`: what the user wrote, and where.
struct SourceEntry {
  std::string as_written;          ///< for messages
  std::filesystem::path resolved;  ///< as_written against the folder of the input file; may hold `*`, `?`, `**`
  std::string file;                ///< input file, or "command line"; empty where there is none
  int line = 0;                    ///< 1-based line in `file`; 0 where there is none
};

/// A run of bytes of a Text that came from one file.
struct TextPart {
  std::filesystem::path path;
  std::int64_t begin = 0;  ///< first byte within Text::bytes
  std::int64_t size = 0;
};

/// Bytes of several files, one after the other, without separators.
struct Text {
  std::string bytes;
  std::vector<TextPart> parts;  ///< in order, without gaps; empty for text that came from no file
};

/// Most names that the search for the files of one entry looks at, which takes seconds. An entry with more is an error:
/// it was hardly meant.
inline constexpr std::int64_t kMostNames = 1'000'000;

/// Reads every entry and joins what it finds: entries in the order given, files of one entry sorted by path.
///
/// - A file is taken whole, whatever it holds.
/// - A folder is searched recursively; hidden names, folders called `build` or `runs`, and files with a NUL byte are
///   passed over. Symbolic links to folders are not followed.
/// - A glob (`*` and `?` within a name, `**` for any number of folders) yields files, never folders; the same names
///   are passed over except where the pattern spells them out.
/// - What a folder or a glob yields below `results`, or below `results.1` and so on beside it, is passed over: it is of
///   this run and of earlier ones. An entry that lies there itself is taken as it says. Empty: there is none.
/// - A file that several entries name is taken once, at its first place.
///
/// Errors: appends one Issue (key `key`) for each entry that is missing, unreadable, the root of the file system, or
/// yields nothing, or that has more than `most_names` names below it, and one if all of them together hold no byte;
/// what could be read is returned nevertheless.
[[nodiscard]] Text load_text(std::span<const SourceEntry> entries, std::string_view key, std::vector<Issue>& issues,
                             std::int64_t most_names = kMostNames, const std::filesystem::path& results = {});

/// Whether load_text() would take `file` for one of these entries.
[[nodiscard]] bool takes_file(std::span<const SourceEntry> entries, const std::filesystem::path& file,
                              const std::filesystem::path& results = {});

}  // namespace cleave::data
