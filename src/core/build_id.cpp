#include "unsloth/core/build_id.h"

#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstdint>

namespace unsloth {

std::string build_id(const void* code) {
    struct Search {
        uintptr_t address;
        std::string id;
    } search{reinterpret_cast<uintptr_t>(code), {}};
    ::dl_iterate_phdr(
        [](dl_phdr_info* module, std::size_t, void* data) {
            auto& wanted = *static_cast<Search*>(data);
            bool inside = false;
            std::string id;
            for (int i = 0; i < module->dlpi_phnum; ++i) {
                const auto& segment = module->dlpi_phdr[i];
                const uintptr_t begin = module->dlpi_addr + segment.p_vaddr;
                if (segment.p_type == PT_LOAD)
                    inside |= wanted.address >= begin && wanted.address < begin + segment.p_memsz;
                if (segment.p_type != PT_NOTE) continue;
                for (uintptr_t at = begin; at + sizeof(ElfW(Nhdr)) <= begin + segment.p_memsz;) {
                    const auto* note = reinterpret_cast<const ElfW(Nhdr)*>(at);
                    const uintptr_t content = at + sizeof *note + (note->n_namesz + 3) / 4 * 4;
                    if (note->n_type == NT_GNU_BUILD_ID)
                        id.assign(reinterpret_cast<const char*>(content), note->n_descsz);
                    at = content + (note->n_descsz + 3) / 4 * 4;
                }
            }
            if (inside) wanted.id = id;
            return inside ? 1 : 0;
        },
        &search);
    return search.id;
}

}  // namespace unsloth
