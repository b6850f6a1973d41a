// From PTX to code of this processor: translate.py makes C of a kernel when it is first asked for, and the C compiler a
// library. Both are kept beside this library, by what the PTX says.

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "gpu.h"

struct Module {
    Device *device;
    // The PTX, in a file, without its ending.
    std::string path;
    std::map<std::string, Kernel *> kernels;
};

// The folder of this library, where the translator is as well.
static std::string folder() {
    Dl_info info;
    dladdr((void *)&folder, &info);
    std::string path = info.dli_fname;
    return path.substr(0, path.rfind('/'));
}

static bool exists(const std::string &path) {
    struct stat ignored;
    return stat(path.c_str(), &ignored) == 0;
}

// Several processes may make the same file: each makes its own, and the last to move it there wins.
static std::string unfinished(const std::string &path) { return path + "." + std::to_string(getpid()); }

static std::string number_of(const std::string &text) {
    uint64_t hash = 14695981039346656037ull;
    for (unsigned char byte : text) hash = (hash ^ byte) * 1099511628211ull;
    char digits[17];
    snprintf(digits, sizeof digits, "%016lx", hash);
    return digits;
}

Module *load(Device *device, const std::string &text) {
    auto *module = new Module{device, folder() + "/kernels/" + number_of(text)};
    std::string path = module->path + ".ptx";
    if (!exists(path)) {
        std::ofstream(unfinished(path)) << text;
        rename(unfinished(path).c_str(), path.c_str());
    }
    const std::string head = ".entry ";
    for (size_t at = text.find(head); at != std::string::npos; at = text.find(head, at)) {
        at += head.size();
        module->kernels[text.substr(at, text.find_first_of("( \t\n", at) - at)] = nullptr;
    }
    return module;
}

static bool compile(const Module &module, const std::string &name, const std::string &library) {
    std::string source = unfinished(library) + ".c", made = unfinished(library), here = folder();
    // Neither Python nor the compiler should find this library in place of the system's.
    std::string command = "unset LD_LIBRARY_PATH; python3 '" + here + "/translate.py' '" + module.path + ".ptx' '" + name +
                          "' '" + source + "' && cc -w -O1 -march=native -ffp-contract=off -fPIC -shared -I '" + here +
                          "' -o '" + made + "' '" + source + "' -lm";
    bool done = system(command.c_str()) == 0 && rename(made.c_str(), library.c_str()) == 0;
    unlink(source.c_str());
    return done;
}

template <class T>
static const T *symbol(void *library, const char *name) {
    return static_cast<const T *>(dlsym(library, name));
}

CUresult find(Module *module, const char *name, Kernel **found) {
    auto known = module->kernels.find(name);
    if (known == module->kernels.end()) return CUDA_ERROR_NOT_FOUND;
    if (known->second == nullptr) {
        std::string path = module->path + "-" + name + ".so";
        void *library = exists(path) || compile(*module, name, path) ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
        if (library == nullptr) return CUDA_ERROR_INVALID_PTX;
        auto run = (void (*)(char *, Thread *))dlsym(library, "kernel");
        known->second = new Kernel{name, run, *symbol<int>(library, "arguments"), *symbol<int>(library, "bytes"),
                                   *symbol<int>(library, "shared"), symbol<int>(library, "starts"),
                                   symbol<int>(library, "sizes"), *symbol<int>(library, "waits") != 0};
    }
    *found = known->second;
    return CUDA_SUCCESS;
}
