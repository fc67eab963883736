// Definitions for kpipe_shim_check.h.
#pragma once

namespace kpipe_shim {
namespace internals {
static std::ostringstream& stream(void* text) { return *static_cast<std::ostringstream*>(text); }
Message::Message() : text_(new std::ostringstream) {}
Message::~Message() { delete &stream(text_); }
void Message::put(const char* s) { stream(text_) << s; }
void Message::add(const char* s, size_t n) { stream(text_).write(s, static_cast<std::streamsize>(n)); }
void Message::add(char v) { stream(text_) << v; }
void Message::add(long long v) { stream(text_) << v; }
void Message::add(unsigned long long v) { stream(text_) << v; }
void Message::add(double v) { stream(text_) << v; }
void Message::add(const void* v) { stream(text_) << v; }
void Message::add(IntArrayRef v) { stream(text_) << real(v); }
void Message::add(ScalarType v) { stream(text_) << real(v); }
void Message::add(TypeMeta v) { stream(text_) << c10::scalarTypeToTypeMeta(real(v.type)); }
void Message::add(const Device& v) { stream(text_) << real(v); }
void Message::add(DeviceType v) { stream(text_) << static_cast<at::DeviceType>(v); }
void Message::add(const Scalar& v) { stream(text_) << real(v); }
void Message::add(const Tensor& v) { stream(text_) << real(v); }
static c10::SourceLocation location(Place p) { return {p.function, p.file, static_cast<uint32_t>(p.line)}; }
void Message::raise(ErrorKind kind, Place place) const {
  auto text = stream(text_).str();
  switch (kind) {
    case ErrorKind::Index: throw c10::IndexError(location(place), text);
    case ErrorKind::Value: throw c10::ValueError(location(place), text);
    case ErrorKind::Type: throw c10::TypeError(location(place), text);
    case ErrorKind::NotImplemented: throw c10::NotImplementedError(location(place), text);
    default: throw c10::Error(location(place), text);
  }
}
void Message::raise_assertion(const char* condition, Place p) const {
  auto place = std::string(" INTERNAL ASSERT FAILED at \"") + p.file + "\":" + std::to_string(p.line);
  throw c10::Error(location(p), condition + place + ", please report a bug to PyTorch. " + stream(text_).str());
}
void Message::warn(Place place) const { c10::warn(c10::Warning(c10::UserWarning(), location(place), stream(text_).str(), false)); }
}  // namespace internals
}  // namespace kpipe_shim
