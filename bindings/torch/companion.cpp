// The C++ part of forebay.torch: what only C++ can say to PyTorch.
//
// Owns three things. An allocation that fails becomes an exception of PyTorch's: PyTorch does not
// look at a null pointer from an allocator that replaces its own, so a C function cannot tell of a
// failure. The filter of a private pool is a std::function, of which a copy is kept until the pool
// closes. The recorder of history is a Python function, called with the interpreter's lock and with
// the thread's pending exception put aside.
//
// Knows nothing of PyTorch at compile time: one build serves every PyTorch whose libc10 has the
// constructors below under these names (2.6 on use this form of std::string), found when it is
// started and tried out once there, by an exception thrown and caught. Promises that an exception
// leaves only the functions that PyTorch calls to allocate. Thread-safe, once started.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <cxxabi.h>
#include <dlfcn.h>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <typeinfo>
#include <utility>

#include "forebay.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// c10::SourceLocation (c10/util/Exception.h).
struct SourceLocation {
    const char *function;
    const char *file;
    std::uint32_t line;
};

using Constructor = void (*)(void *self, SourceLocation, std::string);

// A class of exceptions in libc10.
struct Class {
    Constructor make = nullptr;
    const std::type_info *type = nullptr;
};

// The functions of libforebay that this part calls: it is loaded by Python, out of sight.
struct Entries {
    decltype(&forebay_torch_allocate) allocate;
    decltype(&forebay_last_error) last_error;
    decltype(&forebay_torch_begin_allocate_to_pool) begin;
    decltype(&forebay_torch_end_allocate_to_pool) end;
};

// Python's C API, in the process already.
struct Python {
    int (*is_initialized)();
    int (*ensure)();
    void (*release)(int);
    void (*fetch)(void **, void **, void **);
    void (*restore)(void *, void *, void *);
};

Entries entries;
Class out_of_memory, error;
Python python;

// Room for any exception of c10's: its class grows with PyTorch's versions.
constexpr std::size_t exception_bytes = 4096;

void destroy(void *exception) { static_cast<std::exception *>(exception)->~exception(); }

[[noreturn]] void raise(const Class &of, const std::string &text)
{
    void *memory = abi::__cxa_allocate_exception(exception_bytes);
    try {
        of.make(memory, SourceLocation{"forebay", __FILE__, __LINE__}, text);
    } catch (...) {
        abi::__cxa_free_exception(memory);
        throw;
    }
    // What a `throw` expression of this class compiles to (Itanium C++ ABI: Exception Handling).
    abi::__cxa_throw(memory, const_cast<std::type_info *>(of.type), destroy);
}

bool find(void *library, const char *name, Class &to)
{
    std::string mangled = std::to_string(std::strlen(name)) + name;
    std::string make = "_ZN3c10" + mangled +
        "C1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
    void *constructor = dlsym(library, make.c_str());
    void *type = dlsym(library, ("_ZTIN3c10" + mangled + "E").c_str());
    std::memcpy(&to.make, &constructor, sizeof constructor);
    to.type = static_cast<const std::type_info *>(type);
    return constructor != nullptr && type != nullptr;
}

// Whether an exception of this class can be thrown, caught as what it is, and read.
bool works(const Class &of)
{
    static const char *const text = "forebay tries an exception";
    try {
        raise(of, text);
    } catch (const std::exception &caught) {
        return typeid(caught) == *of.type && std::strstr(caught.what(), text) != nullptr;
    } catch (...) {
    }
    return false;
}

template <typename F> bool find_python(const char *name, F &to)
{
    void *found = dlsym(RTLD_DEFAULT, name);
    std::memcpy(&to, &found, sizeof found);
    return found != nullptr;
}

using Filter = std::function<bool(forebay_stream_t)>;
using Id = std::pair<unsigned long long, unsigned long long>;
using Key = std::tuple<int, unsigned long long, unsigned long long>;

// Filters of the private pools that are open. Never destroyed: threads may outlive it.
std::mutex &filters_lock()
{
    static auto *lock = new std::mutex;
    return *lock;
}

std::map<Key, std::unique_ptr<Filter>> &filters()
{
    static auto *all = new std::map<Key, std::unique_ptr<Filter>>;
    return *all;
}

bool takes(void *filter, forebay_stream_t stream)
{
    try {
        return (*static_cast<Filter *>(filter))(stream);
    } catch (...) {
        return false;
    }
}

// A size as PyTorch writes it in this message, which programs read.
std::string readable(std::size_t bytes)
{
    const char *const units[] = {"KiB", "MiB", "GiB"};
    if (bytes <= 1024) {
        return std::to_string(bytes) + " bytes";
    }
    double size = static_cast<double>(bytes) / 1024;
    int unit = 0;
    for (; unit < 2 && size > 1024; unit++) {
        size /= 1024;
    }
    char text[64];
    std::snprintf(text, sizeof text, "%.2f %s", size, units[unit]);
    return text;
}

forebay_torch_pool_id number(const Id &id) { return {id.first, id.second}; }

} // namespace

// Finds PyTorch's classes in libc10, at the path given, and Python's functions. Answers 0, or 1
// with a sentence in `why`. To be called once, before the others.
EXPORT int forebay_companion_start(const Entries *of_forebay, const char *libc10, char *why,
                                   std::size_t length)
{
    const auto fail = [&](const char *what) {
        std::snprintf(why, length, "%s", what);
        return 1;
    };
    void *library = dlopen(libc10, RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) {
        return fail("PyTorch's libc10 is not loaded");
    }
    if (!find(library, "OutOfMemoryError", out_of_memory) || !find(library, "Error", error)) {
        return fail("this PyTorch's libc10 has no constructors of its exceptions in a known form");
    }
    if (!works(out_of_memory) || !works(error)) {
        return fail("an exception of this PyTorch's cannot be thrown from here");
    }
    if (!find_python("Py_IsInitialized", python.is_initialized) ||
        !find_python("PyGILState_Ensure", python.ensure) ||
        !find_python("PyGILState_Release", python.release) ||
        !find_python("PyErr_Fetch", python.fetch) ||
        !find_python("PyErr_Restore", python.restore)) {
        return fail("the interpreter's C functions are not visible in this process");
    }
    entries = *of_forebay;
    return 0;
}

// PyTorch's alloc_fn.
EXPORT void *forebay_companion_alloc(std::size_t bytes, int device, forebay_stream_t stream)
{
    void *address = nullptr;
    const forebay_status status = entries.allocate(&address, bytes, device, stream);
    if (status == FOREBAY_OK) {
        return address;
    }
    const std::string text = entries.last_error();
    // No mappings left is no memory, as with PyTorch's own allocator.
    if (status == FOREBAY_ERROR_OUT_OF_MEMORY || status == FOREBAY_ERROR_MAPPING_LIMIT) {
        // Programs look for these words to try again with less.
        raise(out_of_memory, "CUDA out of memory. Tried to allocate " + readable(bytes) +
                                 ". Forebay: " + text);
    }
    raise(error, "Forebay: " + text);
}

// PyTorch's begin_allocate_to_pool. Throws PyTorch's error where the private pool cannot be opened.
EXPORT void forebay_companion_begin(int device, Id id, Filter filter)
{
    auto kept = std::make_unique<Filter>(std::move(filter));
    Filter *word = kept.get();
    {
        // The one before, of a pool that is opened again, lives until forebay has the new one.
        std::lock_guard<std::mutex> guard(filters_lock());
        filters()[Key{device, id.first, id.second}].swap(kept);
    }
    if (entries.begin(device, number(id), takes, word) != FOREBAY_OK) {
        raise(error, std::string("Forebay: ") + entries.last_error());
    }
}

// PyTorch's end_allocate_to_pool_fn.
EXPORT void forebay_companion_end(int device, Id id)
{
    entries.end(device, number(id));
    std::lock_guard<std::mutex> guard(filters_lock());
    filters().erase(Key{device, id.first, id.second});
}

// A watcher whose word is a Python function made by ctypes.
EXPORT void forebay_companion_watch(void *function, int what, void *address, std::size_t bytes,
                                    int device, forebay_stream_t stream)
{
    using Function = void (*)(int, void *, std::size_t, int, forebay_stream_t);
    if (!python.is_initialized()) {
        return;
    }
    Function call;
    std::memcpy(&call, &function, sizeof call);
    const int state = python.ensure();
    void *type = nullptr, *value = nullptr, *trace = nullptr;
    // A tensor may die while an exception is on its way.
    python.fetch(&type, &value, &trace);
    call(what, address, bytes, device, stream);
    python.restore(type, value, trace);
    python.release(state);
}
