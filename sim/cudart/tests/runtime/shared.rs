//! Memory of another process.

use crate::child;
use crate::common::*;

const HANDLE: &str = "FOREBAY_TEST_HANDLE";

#[test]
fn another_process_opens_memory_by_its_handle() {
    if let Ok(text) = std::env::var(HANDLE) {
        let _turn = turn();
        let mut handle = IpcHandle([0; 64]);
        for (i, byte) in handle.0.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("a byte");
        }
        let mut at = 0;
        assert_eq!(cudaIpcOpenMemHandle(&mut at, handle, 1), 0);
        assert_eq!(words_of(at, 3), [11, 12, 13]);
        assert_eq!(cudaMemset(at, 6, 4), 0);
        assert_eq!(cudaDeviceSynchronize(), 0);
        assert_eq!(cudaIpcCloseMemHandle(at), 0);
        return;
    }
    let _turn = turn();
    let device = device_words(&[11, 12, 13]);
    assert_eq!(cudaDeviceSynchronize(), 0);
    let mut handle = IpcHandle([0; 64]);
    assert_eq!(cudaIpcGetMemHandle(&mut handle, device), 0);
    let text: String = handle.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = "shared::another_process_opens_memory_by_its_handle";
    let output = child::run(name, &[(HANDLE, &text)]).expect("is the parent");
    child::ended(&output, 0);
    assert_eq!(words_of(device, 3), [0x0606_0606, 12, 13]);
    assert_eq!(cudaFree(device), 0);
}
