//! The host's side: loads a shared object and calls its functions. [`crate::Codec`] uses this.
//!
//! A shared object is never unloaded: its functions are called from several threads, and it may still be logging.

use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::mem;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::slice;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};

use crate::abi::{self, Buffer, CodecTable, EntryFn, HostTable};

/// Maximum length of a plugin's name in bytes.
const MAX_NAME_BYTES: usize = 63;

/// Maximum length of a logged message in bytes; longer ones are truncated.
const MAX_LOG_MESSAGE_BYTES: u64 = 1024;

/// The reason why a plugin cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("plugin {}: {problem}", path.display())]
pub struct LoadError {
    path: PathBuf,
    problem: LoadErrorKind,
}

#[derive(Debug, thiserror::Error)]
enum LoadErrorKind {
    #[error("can't be read: {0}")]
    Read(std::io::Error),
    #[error("can't be loaded: {0}")]
    Load(String),
    #[error(
        "exports no function `plimsoll_codec`: it is not a codec plugin (see plimsoll_codec.h)"
    )]
    Symbol,
    #[error(
        "returned no table of functions: it can't work with version {} of the interface",
        abi::ABI_VERSION
    )]
    Refused,
    #[error(
        "speaks version {theirs} of the interface, and this program version {}: build it with the plimsoll_codec.h of this program",
        abi::ABI_VERSION
    )]
    Version { theirs: u32 },
    #[error(
        "its table has {theirs} bytes, expected {ours}: set size to sizeof(struct plimsoll_codec)"
    )]
    Size { theirs: u32, ours: u32 },
    #[error("its table lacks `{0}`: set all four functions")]
    Function(&'static str),
    #[error("its name {0}: expected 1 to 63 bytes of UTF-8")]
    Name(&'static str),
}

/// A plugin's functions, and its name.
#[derive(Clone, Debug)]
pub(crate) struct PluginFunctions {
    pub(crate) name: String,
    matches: abi::MatchFn,
    decode: abi::DecodeFn,
    encode: abi::EncodeFn,
    make: abi::MakeFn,
}

static HOST_TABLE: HostTable = HostTable {
    abi: abi::ABI_VERSION,
    size: size_of::<HostTable>() as u32,
    wants,
    log,
};

impl PluginFunctions {
    /// Loads a shared object for the lifetime of the process.
    pub(crate) fn load(path: &Path) -> Result<PluginFunctions, LoadError> {
        PluginFunctions::open(path).map_err(|problem| LoadError {
            path: path.to_owned(),
            problem,
        })
    }

    /// Reads the functions of a plugin that is part of this program.
    pub(crate) fn from_table(table: &'static CodecTable) -> Result<PluginFunctions, LoadError> {
        // SAFETY: the reference points to a complete table that is valid for the life of the process.
        let read = unsafe { PluginFunctions::read(table) };
        read.map_err(|problem| LoadError {
            path: "(built in)".into(),
            problem,
        })
    }

    fn open(path: &Path) -> Result<PluginFunctions, LoadErrorKind> {
        // Missing files are detected here because the loader's error messages for them are unclear.
        if !std::fs::metadata(path)
            .map_err(LoadErrorKind::Read)?
            .is_file()
        {
            let problem = "not a file: name the shared object (.so)";
            return Err(LoadErrorKind::Load(problem.to_owned()));
        }
        // The loader would search a bare name in the system's library directories.
        let place = if path.is_absolute() {
            path.to_owned()
        } else {
            Path::new(".").join(path)
        };
        // SAFETY: this runs the initialisers of the shared object; a user who names a plugin trusts its code with this
        // process. All its symbols are resolved now, so that none is missing when a function is called.
        let library = unsafe { Library::open(Some(&place), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|e| LoadErrorKind::Load(loader_message(&e, &place)))?;
        // SAFETY: the header declares the symbol with this type, and a plugin must follow the header.
        let entry = unsafe { library.get::<EntryFn>(abi::ENTRY_SYMBOL.as_bytes()) };
        let entry: Symbol<EntryFn> = entry.map_err(|_| LoadErrorKind::Symbol)?;
        // SAFETY: the library is loaded, and `HOST_TABLE` is static.
        let table = unsafe { entry(&raw const HOST_TABLE) };
        mem::forget(library);
        // SAFETY: a plugin must return null, or a table that is valid for the life of the process.
        unsafe { PluginFunctions::read(table) }
    }

    /// Checks a plugin's function table, and reads its functions and name.
    ///
    /// # Safety
    /// `table` must be null, or point to a table that begins with `abi` and `size`, as in every version. If `abi` is
    /// this version of the interface and `size` the size of its table, all other fields must be present, too.
    unsafe fn read(table: *const CodecTable) -> Result<PluginFunctions, LoadErrorKind> {
        if table.is_null() || !table.is_aligned() {
            return Err(LoadErrorKind::Refused);
        }
        // SAFETY: the table is not null, is aligned, and has these fields in every version.
        let (version, theirs) = unsafe { ((*table).abi, (*table).size) };
        if version != abi::ABI_VERSION {
            return Err(LoadErrorKind::Version { theirs: version });
        }
        let ours = size_of::<CodecTable>() as u32;
        if theirs != ours {
            return Err(LoadErrorKind::Size { theirs, ours });
        }
        // SAFETY: the table has this version and size, so it has every field; null functions are `None`.
        let table = unsafe { &*table };
        if table.name.is_null() {
            return Err(LoadErrorKind::Name("is missing"));
        }
        // SAFETY: the name is not null, and a plugin must end it with a zero byte.
        let name = unsafe { CStr::from_ptr(table.name) };
        let name = name
            .to_str()
            .map_err(|_| LoadErrorKind::Name("is not UTF-8"))?;
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return Err(LoadErrorKind::Name("is empty or too long"));
        }
        let lacks = LoadErrorKind::Function;
        Ok(PluginFunctions {
            name: name.to_owned(),
            matches: table.matches.ok_or(lacks("match"))?,
            decode: table.decode.ok_or(lacks("decode"))?,
            encode: table.encode.ok_or(lacks("encode"))?,
            make: table.make.ok_or(lacks("make"))?,
        })
    }

    #[inline]
    pub(crate) fn matches(&self, bytes: &[u8], sender: u32) -> i32 {
        // SAFETY: the function is from a loaded table, and is called as the header declares it: with a pointer to bytes
        // that remain valid during the call, and their length.
        unsafe { (self.matches)(bytes.as_ptr(), bytes.len() as u64, sender) }
    }

    #[inline]
    pub(crate) fn decode(&self, bytes: &[u8], sender: u32, frame: &mut abi::Frame) -> i32 {
        // SAFETY: the call is as in `matches`; the frame is borrowed exclusively, and any bytes are valid in it.
        unsafe { (self.decode)(bytes.as_ptr(), bytes.len() as u64, sender, frame) }
    }

    /// Returns the result code and the length of the written frame, both as the plugin returned them.
    #[inline]
    pub(crate) fn encode(&self, frame: &[u8], note: u64, id: u64, room: &mut [u8]) -> (i32, u64) {
        let mut out = output_buffer(room);
        // SAFETY: the call is as in `matches`; `out` points to `room`, which is borrowed exclusively.
        let result =
            unsafe { (self.encode)(frame.as_ptr(), frame.len() as u64, note, id, &raw mut out) };
        (result, out.length)
    }

    /// Returns the result code and the length of the written frame, both as the plugin returned them.
    pub(crate) fn make_frame(
        &self,
        what: u32,
        id: u64,
        note: u64,
        payload: &[u8],
        room: &mut [u8],
    ) -> (i32, u64) {
        let mut out = output_buffer(room);
        // SAFETY: the call is as in `matches`; `out` points to `room`, which is borrowed exclusively.
        let result = unsafe {
            (self.make)(
                what,
                id,
                note,
                payload.as_ptr(),
                payload.len() as u64,
                &raw mut out,
            )
        };
        (result, out.length)
    }
}

fn output_buffer(room: &mut [u8]) -> Buffer {
    Buffer {
        bytes: room.as_mut_ptr(),
        room: room.len() as u64,
        length: 0,
    }
}

/// Returns the loader's message without the path, which the caller adds.
fn loader_message(error: &libloading::Error, place: &Path) -> String {
    let place = format!("{}: ", place.display());
    error.to_string().replacen(&place, "", 1)
}

thread_local! {
    /// Whether debug messages of plugins are dropped on this thread.
    static DROPS_DEBUG_MESSAGES: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f` and drops the debug messages of plugins called on this thread. Used when a frame is decoded once more than
/// necessary, so that each step of a call is logged only once.
pub fn without_debug_messages<T>(f: impl FnOnce() -> T) -> T {
    /// A guard that restores the previous setting, even if `f` panics.
    struct DebugMessagesGuard(bool);
    impl Drop for DebugMessagesGuard {
        fn drop(&mut self) {
            DROPS_DEBUG_MESSAGES.set(self.0);
        }
    }
    let _before = DebugMessagesGuard(DROPS_DEBUG_MESSAGES.replace(true));
    f()
}

extern "C" fn wants(level: u32) -> u32 {
    let is_wanted = catch_unwind(|| match level {
        abi::log_level::ERROR => tracing::enabled!(tracing::Level::ERROR),
        abi::log_level::WARN => tracing::enabled!(tracing::Level::WARN),
        abi::log_level::DEBUG => {
            !DROPS_DEBUG_MESSAGES.get() && tracing::enabled!(tracing::Level::DEBUG)
        }
        _ => false,
    });
    u32::from(is_wanted.unwrap_or(false))
}

/// Logs a plugin's message.
///
/// # Safety
/// `text` must point to `length` bytes, or be null.
unsafe extern "C" fn log(level: u32, text: *const c_char, length: u64) {
    if text.is_null() {
        return;
    }
    let length = length.min(MAX_LOG_MESSAGE_BYTES) as usize;
    // SAFETY: `text` is not null, and a plugin must pass at least `length` bytes.
    let bytes = unsafe { slice::from_raw_parts(text.cast::<u8>(), length) };
    // A panic must not unwind into C.
    let _ = catch_unwind(|| {
        let text = String::from_utf8_lossy(bytes);
        match level {
            abi::log_level::ERROR => tracing::error!("{text}"),
            abi::log_level::WARN => tracing::warn!("{text}"),
            abi::log_level::DEBUG if !DROPS_DEBUG_MESSAGES.get() => tracing::debug!("{text}"),
            _ => {}
        }
    });
}
