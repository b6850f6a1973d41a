//! This computer's processor as the machine: a program that contains the kernels, called once for each launch.
//!
//! It is compiled with checks of every access, if the C++ compiler has them: a kernel that reaches beyond its memory
//! ends it. Memory for results begins as NaN, so that an element that no thread writes is found.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::{env, fs};

use candle_core::backend::BackendStorage as _;
use candle_core::{CpuStorage, DType, Result, bail};
use half::bf16;
use itertools::Itertools as _;
use tempfile::TempDir;

use super::kernel::{Elements, PRELUDE, Source, definitions};
use super::launch::{Argument, Launch};
use super::machine::Machine;
use harness::lock::locked;

/// What shows a kernel that reaches beyond its memory, or a result that C++ does not define.
const CHECKS: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

/// Threads of a block here: fewer than a GPU's, as each is one of the operating system's. What a block is to do does
/// not depend on how many it has.
const THREADS: usize = 32;

/// A machine that needs a C++ compiler and no GPU.
pub(super) struct Emulator {
    programs: Mutex<HashMap<Elements, Program>>,
}

/// A program with the kernels for one type and vectors of one size.
#[derive(Clone)]
struct Program {
    path: Arc<Path>,
    /// Whether it ends where a kernel reaches beyond its memory.
    checks: bool,
}

impl Emulator {
    /// A machine, or `None` on a computer without a C++ compiler, which is told.
    pub(super) fn new() -> Option<Self> {
        if let Err(error) = Command::new(compiler()).arg("--version").output() {
            eprintln!("SKIPPED: {}: {error}", compiler());
            return None;
        }
        Some(Self { programs: Mutex::default() })
    }

    /// Whether kernels that reach beyond their memory are found.
    pub(super) fn checks(&self) -> Result<bool> {
        Ok(self.program(Elements { dtype: DType::F32, vector: 1 })?.checks)
    }

    fn program(&self, elements: Elements) -> Result<Program> {
        let mut programs = locked(&self.programs);
        Ok(match programs.entry(elements) {
            Entry::Occupied(program) => program.get().clone(),
            Entry::Vacant(room) => room.insert(compiled(elements)?).clone(),
        })
    }
}

/// The program for these elements. It lies beside the tests' own, and is made anew when a kernel has changed.
fn compiled(elements: Elements) -> Result<Program> {
    let names = Source::ALL.into_iter().flat_map(Source::kernels);
    let files = [
        ("kernels.inc", format!("{PRELUDE}\n{}", Source::ALL.map(Source::text).concat())),
        ("names.inc", names.map(|kernel| format!("NAMED({kernel})\n")).collect()),
        ("emulator.cpp", include_str!("emulator.cpp").to_owned()),
    ];
    let mut key = DefaultHasher::new();
    (&files, definitions(elements, THREADS)?, compiler()).hash(&mut key);
    let tests = env::current_exe()?;
    let folder = tests.with_file_name("gpu-emulator");
    let key = format!("{}-{:016x}", elements.dtype.as_str(), key.finish());
    for checks in [true, false] {
        let path = folder.join(format!("{key}-{checks}"));
        if path.exists() {
            return Ok(Program { path: path.into(), checks });
        }
    }
    fs::create_dir_all(&folder)?;
    let workshop = TempDir::new_in(&folder)?;
    for (name, text) in &files {
        fs::write(workshop.path().join(name), text)?;
    }
    let attempt = |checks: &[&str]| {
        let mut command = Command::new(compiler());
        command.args(["-std=c++20", "-O1", "-g1", "-pthread", "-ffp-contract=off"]);
        command.args(definitions(elements, THREADS)?).args(checks);
        command.args(["-o", "emulator", "emulator.cpp"]).current_dir(workshop.path());
        Ok::<_, candle_core::Error>(command.output()?)
    };
    let mut output = attempt(&CHECKS)?;
    let checks = output.status.success();
    if !checks {
        output = attempt(&[])?;
    }
    if !output.status.success() {
        bail!("the kernels do not compile: {}", String::from_utf8_lossy(&output.stderr));
    }
    let path = folder.join(format!("{key}-{checks}"));
    // Another test may have made the same meanwhile.
    fs::rename(workshop.path().join("emulator"), &path)?;
    Ok(Program { path: path.into(), checks })
}

fn compiler() -> String {
    env::var("CXX").unwrap_or_else(|_| "c++".to_owned())
}

impl Machine for Emulator {
    type Storage = CpuStorage;

    fn room(&self, elements: usize, dtype: DType) -> Result<CpuStorage> {
        from_bytes(dtype, &vec![0xff; elements * dtype.size_in_bytes()])
    }

    fn start(&self, launch: Launch<'_, CpuStorage>, blocks: usize) -> Result<()> {
        let Launch { kernel, mut arguments, .. } = launch;
        if !kernel.source.kernels().contains(&kernel.name) {
            bail!("{} is not a kernel of {:?}", kernel.name, kernel.source);
        }
        let input: Vec<u8> = arguments.iter().flat_map(sent).collect();
        let mut program = Command::new(&*self.program(kernel.elements)?.path);
        program.args([kernel.name, &blocks.to_string()]).stdin(Stdio::piped());
        let mut running = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        // It reads everything before it writes anything.
        let mut stdin = running.stdin.take();
        let sent = stdin.as_mut().map_or(Ok(()), |stdin| stdin.write_all(&input));
        drop(stdin);
        let output = running.wait_with_output()?;
        if !output.status.success() {
            bail!("{}: {}", kernel.name, String::from_utf8_lossy(&output.stderr));
        }
        sent?;
        let mut memory = output.stdout.as_slice();
        for argument in &mut arguments {
            match argument {
                Argument::Read(operand) => {
                    let _ = take(&mut memory, operand.elements * operand.dtype().size_in_bytes());
                }
                Argument::Write(storage, start) => {
                    let dtype = storage.dtype();
                    let mut bytes = bytes_of(storage)?;
                    let written = bytes.split_off(*start * dtype.size_in_bytes());
                    bytes.extend(take(&mut memory, written.len()));
                    **storage = from_bytes(dtype, &bytes)?;
                }
                Argument::Count(_) | Argument::Number(_) => {}
            }
        }
        Ok(())
    }
}

/// The first bytes of those that are left.
fn take<'a>(memory: &mut &'a [u8], bytes: usize) -> &'a [u8] {
    let (first, rest) = memory.split_at(bytes);
    *memory = rest;
    first
}

/// An argument as the program reads it.
fn sent(argument: &Argument<'_, CpuStorage>) -> Vec<u8> {
    let memory = |storage: &CpuStorage, start: usize, elements: Option<usize>| {
        let size = storage.dtype().size_in_bytes();
        let bytes = &bytes_of(storage).unwrap()[start * size..];
        let bytes = elements.map_or(bytes, |elements| &bytes[..elements * size]);
        let sizes = [size, bytes.len()].map(|number| (number as u64).to_ne_bytes());
        [b"m", sizes.concat().as_slice(), bytes].concat()
    };
    match argument {
        Argument::Read(operand) => memory(operand.storage, operand.start, Some(operand.elements)),
        Argument::Write(storage, start) => memory(storage, *start, None),
        Argument::Count(count) => {
            [b"c".as_slice(), &u32::try_from(*count).unwrap().to_ne_bytes()].concat()
        }
        Argument::Number(number) => [b"n".as_slice(), &number.to_ne_bytes()].concat(),
    }
}

fn bytes_of(storage: &CpuStorage) -> Result<Vec<u8>> {
    Ok(match storage {
        CpuStorage::U32(values) => values.iter().flat_map(|value| value.to_ne_bytes()).collect(),
        CpuStorage::BF16(values) => values.iter().flat_map(|value| value.to_ne_bytes()).collect(),
        CpuStorage::F32(values) => values.iter().flat_map(|value| value.to_ne_bytes()).collect(),
        CpuStorage::F64(values) => values.iter().flat_map(|value| value.to_ne_bytes()).collect(),
        other => bail!("kernels read and write u32, bf16, f32 and f64, not {:?}", other.dtype()),
    })
}

fn from_bytes(dtype: DType, bytes: &[u8]) -> Result<CpuStorage> {
    Ok(match dtype {
        DType::BF16 => CpuStorage::BF16(numbers(bytes, bf16::from_ne_bytes)),
        DType::F32 => CpuStorage::F32(numbers(bytes, f32::from_ne_bytes)),
        DType::F64 => CpuStorage::F64(numbers(bytes, f64::from_ne_bytes)),
        other => bail!("kernels write bf16, f32 and f64, not {other:?}"),
    })
}

fn numbers<T, const N: usize>(bytes: &[u8], from: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks().0.iter().map(|&number| from(number)).collect()
}
