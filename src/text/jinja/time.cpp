// strftime in the C locale, from a time in UTC: the conversions of C99 and the flags of the GNU library.
#include <cstdio>

#include "text/jinja/python.h"

namespace fovea::jinja {

namespace {

constexpr const char* kDays[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                 "Thursday", "Friday", "Saturday"};
constexpr const char* kMonths[] = {"January", "February", "March",     "April",   "May",      "June",
                                   "July",    "August",   "September", "October", "November", "December"};

struct Number {
  long value;
  int width;
  char pad;  // '0' or ' '
};

std::string padded(Number number, char flag) {
  if (flag == '-') return std::to_string(number.value);
  if (flag == '_') number.pad = ' ';
  if (flag == '0') number.pad = '0';
  std::string digits = std::to_string(number.value);
  while (static_cast<int>(digits.size()) < number.width) digits.insert(digits.begin(), number.pad);
  return digits;
}

// The year and week of ISO 8601.
void iso_week(const std::tm& t, long* year, long* week) {
  const int weekday = (t.tm_wday + 6) % 7;  // Monday is 0
  *year = t.tm_year + 1900;
  *week = (t.tm_yday - weekday + 10) / 7;
  const auto weeks_in = [&](long y) {
    const auto p = [](long n) { return (n + n / 4 - n / 100 + n / 400) % 7; };
    return p(y) == 4 || p(y - 1) == 3 ? 53 : 52;
  };
  if (*week < 1) {
    --*year;
    *week = weeks_in(*year);
  } else if (*week > weeks_in(*year)) {
    *week = 1;
    ++*year;
  }
}

bool number_of(char letter, const std::tm& t, std::time_t when, Number* out) {
  const int hour12 = t.tm_hour % 12 == 0 ? 12 : t.tm_hour % 12;
  long iso_year = 0, week = 0;
  iso_week(t, &iso_year, &week);
  const long year = t.tm_year + 1900L;
  switch (letter) {
    case 'd':
      *out = {t.tm_mday, 2, '0'};
      return true;
    case 'e':
      *out = {t.tm_mday, 2, ' '};
      return true;
    case 'H':
      *out = {t.tm_hour, 2, '0'};
      return true;
    case 'I':
      *out = {hour12, 2, '0'};
      return true;
    case 'k':
      *out = {t.tm_hour, 2, ' '};
      return true;
    case 'l':
      *out = {hour12, 2, ' '};
      return true;
    case 'j':
      *out = {t.tm_yday + 1, 3, '0'};
      return true;
    case 'm':
      *out = {t.tm_mon + 1, 2, '0'};
      return true;
    case 'M':
      *out = {t.tm_min, 2, '0'};
      return true;
    case 'S':
      *out = {t.tm_sec, 2, '0'};
      return true;
    case 's':
      *out = {static_cast<long>(when), 1, '0'};
      return true;
    case 'u':
      *out = {t.tm_wday == 0 ? 7 : t.tm_wday, 1, '0'};
      return true;
    case 'w':
      *out = {t.tm_wday, 1, '0'};
      return true;
    case 'U':
      *out = {(t.tm_yday + 7 - t.tm_wday) / 7, 2, '0'};
      return true;
    case 'W':
      *out = {(t.tm_yday + 7 - (t.tm_wday + 6) % 7) / 7, 2, '0'};
      return true;
    case 'V':
      *out = {week, 2, '0'};
      return true;
    case 'G':
      *out = {iso_year, 1, '0'};
      return true;
    case 'g':
      *out = {iso_year % 100, 2, '0'};
      return true;
    case 'C':
      *out = {year / 100, 2, '0'};
      return true;
    case 'y':
      *out = {year % 100, 2, '0'};
      return true;
    case 'Y':
      *out = {year, 1, '0'};
      return true;
    case 'f':
      *out = {0, 6, '0'};
      return true;  // microseconds: the time has none
    default:
      return false;
  }
}

// What stands for a conversion that is short for others; null when it is none.
const char* expansion(char letter) {
  switch (letter) {
    case 'c':
      return "%a %b %e %H:%M:%S %Y";
    case 'D':
    case 'x':
      return "%m/%d/%y";
    case 'F':
      return "%Y-%m-%d";
    case 'r':
      return "%I:%M:%S %p";
    case 'R':
      return "%H:%M";
    case 'T':
    case 'X':
      return "%H:%M:%S";
    default:
      return nullptr;
  }
}

bool word_of(char letter, const std::tm& t, std::string* out) {
  switch (letter) {
    case 'a':
      *out = std::string(kDays[t.tm_wday]).substr(0, 3);
      return true;
    case 'A':
      *out = kDays[t.tm_wday];
      return true;
    case 'b':
    case 'h':
      *out = std::string(kMonths[t.tm_mon]).substr(0, 3);
      return true;
    case 'B':
      *out = kMonths[t.tm_mon];
      return true;
    case 'p':
      *out = t.tm_hour < 12 ? "AM" : "PM";
      return true;
    case 'P':
      *out = t.tm_hour < 12 ? "am" : "pm";
      return true;
    case 'n':
      *out = "\n";
      return true;
    case 't':
      *out = "\t";
      return true;
    case '%':
      *out = "%";
      return true;
    case 'z':
    case 'Z':
      out->clear();
      return true;  // Python's naive time has no zone
    default:
      return false;
  }
}

}  // namespace

std::string format_time(std::string_view format, std::time_t when) {
  std::tm t{};
  if (gmtime_r(&when, &t) == nullptr) Runtime::fail("the time " + std::to_string(when) + " is out of range");
  std::string out;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 == format.size()) {
      out += format[i];
      continue;
    }
    const size_t start = i++;
    char flag = 0;
    if (std::string_view("-_0^").find(format[i]) != std::string_view::npos && i + 1 < format.size())
      flag = format[i++];
    Number number{};
    std::string word;
    if (flag != 0 && format[i] == 'f') {  // Python knows %f, the C library with its flags does not
      out += format.substr(start, i - start + 1);
    } else if (number_of(format[i], t, when, &number)) {
      out += padded(number, flag);
    } else if (const char* longer = expansion(format[i])) {
      out += format_time(longer, when);
    } else if (word_of(format[i], t, &word)) {
      for (char& c : word) {
        if (flag == '^' && c >= 'a' && c <= 'z') c = static_cast<char>(c - 32);
      }
      out += word;
    } else {
      out += format.substr(start, i - start + 1);
    }
  }
  return out;
}

}  // namespace fovea::jinja
