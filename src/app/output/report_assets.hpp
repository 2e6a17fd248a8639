// The parts of report.html that CMake puts into the program: src/app/report/ and src/app/report/uplot/.
#pragma once

#include <string_view>

namespace cleave::app::assets {

extern const std::string_view kPageHtml, kPageCss, kPageJs, kChartsJs, kChartsCss;

}  // namespace cleave::app::assets
