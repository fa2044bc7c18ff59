//! ELF files: the loader they name, the libraries they need, the symbols they import and export.

use super::Refusal;
use object::read::elf::{Dyn, ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol, elf};
use std::path::{Path, PathBuf};

/// What a program or library says of itself.
#[derive(Debug, Default)]
pub struct Image {
    /// The file.
    pub file: PathBuf,
    /// The dynamic loader; none: statically linked, or a library.
    pub loader: Option<String>,
    /// The libraries that it needs, as named.
    pub needed: Vec<String>,
    /// Folders to look for them in, before `LD_LIBRARY_PATH`; `$ORIGIN` as written.
    pub rpath: Vec<String>,
    /// The same, after `LD_LIBRARY_PATH`.
    pub runpath: Vec<String>,
    /// Names that it takes from others.
    pub imports: Vec<String>,
    /// Names that it defines but gives to nobody: where a static CUDA runtime shows.
    pub locals: Vec<String>,
}

#[cfg(target_arch = "x86_64")]
const MACHINE: elf::Machine = elf::EM_X86_64;
#[cfg(target_arch = "aarch64")]
const MACHINE: elf::Machine = elf::EM_AARCH64;

impl Image {
    /// Reads a file.
    pub fn read(file: &Path) -> Result<Image, Refusal> {
        let told = |why: &str| Refusal::NotExecutable(format!("{}: {why}", file.display()));
        let data = std::fs::read(file).map_err(|e| told(&e.to_string()))?;
        if !data.starts_with(&elf::ELFMAG) {
            return Err(told("it is neither an ELF program nor a script"));
        }
        let parsed = ElfFile64::<Endianness>::parse(&*data);
        let parsed = parsed.map_err(|_| told("it is no 64-bit ELF file, or a damaged one"))?;
        if parsed.elf_header().e_machine(parsed.endian()) != MACHINE {
            return Err(told("it is for another kind of processor"));
        }
        describe(file, &parsed).map_err(|e| told(&format!("a damaged ELF file ({e})")))
    }
}

fn describe(file: &Path, parsed: &ElfFile64<'_, Endianness>) -> object::Result<Image> {
    let endian = parsed.endian();
    let data = parsed.data();
    let mut image = Image { file: file.to_owned(), ..Image::default() };
    for segment in parsed.elf_program_headers() {
        if let Some(name) = segment.interpreter(endian, data)? {
            image.loader = Some(String::from_utf8_lossy(name).into_owned());
        }
    }
    let sections = parsed.elf_section_table();
    if let Some((entries, link)) = sections.dynamic(endian, data)? {
        let strings = sections.strings(endian, data, link)?;
        for entry in entries {
            let tag = entry.tag(endian);
            let list = match tag {
                elf::DT_NEEDED => &mut image.needed,
                elf::DT_RPATH => &mut image.rpath,
                elf::DT_RUNPATH => &mut image.runpath,
                _ => continue,
            };
            let text = String::from_utf8_lossy(entry.string(endian, strings)?).into_owned();
            if tag == elf::DT_NEEDED {
                list.push(text);
            } else {
                list.extend(text.split(':').filter(|dir| !dir.is_empty()).map(str::to_owned));
            }
        }
    }
    let name = |symbol: &object::read::elf::ElfSymbol64<'_, '_, Endianness>| {
        symbol.name().map(str::to_owned).unwrap_or_default()
    };
    image.imports =
        parsed.dynamic_symbols().filter(|s| s.is_undefined()).map(|s| name(&s)).collect();
    image.locals = parsed.symbols().filter(|s| s.is_local()).map(|s| name(&s)).collect();
    Ok(image)
}

/// The names that a library exports, sorted.
pub fn exports(file: &Path) -> Result<Vec<String>, String> {
    let told = |why: String| format!("{}: {why}", file.display());
    let data = std::fs::read(file).map_err(|e| told(e.to_string()))?;
    let parsed = ElfFile64::<Endianness>::parse(&*data).map_err(|e| told(e.to_string()))?;
    let defined = parsed.dynamic_symbols().filter(|s| s.is_definition() && s.is_global());
    let mut names: Vec<String> = defined.filter_map(|s| s.name().ok().map(str::to_owned)).collect();
    names.sort();
    Ok(names)
}
