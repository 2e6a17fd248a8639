// One input file as a tree of values that know where they came from: a line of the file, or the command line.
//
// `app` loads a Document, applies the overrides of the command line and hands it to a Reader (reader.hpp), which maps
// it to plain structs. Nothing in a file can crash the program: size, nesting and number of values are bounded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace cleave::config {

inline constexpr std::int64_t kMaxFileBytes = std::int64_t{16} << 20;
/// What stands in the place of a file where a value is of the command line.
inline constexpr const char* kCommandLine = "command line";
inline constexpr int kMaxNesting = 64;
inline constexpr std::int64_t kMaxValues = 2'000'000;  ///< after aliases are expanded

class Document {
 public:
  /// A document without keys: everything is left to defaults and overrides.
  Document();
  Document(Document&&) noexcept;
  Document& operator=(Document&&) noexcept;
  ~Document();

  /// Reads `path`, which messages name as given here.
  /// Errors: InputError for a file that cannot be read, is empty, too large, no UTF-8 text, or no YAML; faults that
  /// leave the rest readable (a key given twice) are kept for the Reader to report with its own.
  [[nodiscard]] static Document load(const std::filesystem::path& path);

  /// The same for text at hand: `name` is what messages call it, `folder` what its relative paths are relative to.
  [[nodiscard]] static Document parse(std::string_view text, std::string name, std::filesystem::path folder = ".");

  /// Applies overrides `a.b.c=value` in order; the last one of a key wins. A list element goes by its index
  /// (`fleet.devices.0.count=3`), or by the list's length to append one. A value that opens with `[`, `{`, `"` or `'`
  /// is read as YAML, any other is taken as it stands (`data.text=*.txt`). `key=~` takes the key out, so that its
  /// default holds. A map given whole replaces the file's map. Faults are kept for the Reader.
  void apply(const std::vector<std::string>& assignments);

  [[nodiscard]] const std::string& name() const;

 private:
  friend class Reader;
  friend class Section;
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace cleave::config
