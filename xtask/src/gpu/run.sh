#!/usr/bin/env bash
# Checks Forebay on a machine with an NVIDIA GPU, or on the simulated driver.
#
#   run.sh [--simulated DIR] [--out DIR]
#
# Needs bash, coreutils and glibc; no cargo, no Python, no network. Takes less than 8 minutes: each
# step has a time limit, and a step that fails does not stop the others. Writes DIR/gpu.json (by
# default ./forebay-gpu/gpu.json) and what each step printed beside it. Exit status 0 when no step
# failed, 1 when one did, 3 when there is no usable CUDA driver.
set -uo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
out="$PWD/forebay-gpu"
simulated=""
while [[ $# -gt 0 ]]; do
  case "$1" in
    --simulated) simulated="${2:?--simulated needs the folder of the simulated driver}"; shift 2 ;;
    --out) out="${2:?--out needs a folder}"; shift 2 ;;
    *) echo "run.sh: unknown argument $1" >&2; exit 2 ;;
  esac
done
mkdir -p "$out" || exit 2
out="$(cd "$out" && pwd)"
rm -f "$out"/*.json "$out"/*.log "$out/steps" "$out/facts" "$out/sample"

export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export FOREBAY_BACKEND=cuda
# What the environment may say for programs of its own is not meant for these.
unset FOREBAY_LIMIT FOREBAY_HEADROOM FOREBAY_DEVICE FOREBAY_DEBUG FOREBAY_FREE FOREBAY_MOVE
unset LD_PRELOAD
# This one is for this script alone: programs would take it for a setting that is misspelt.
cudart_folder="${FOREBAY_CUDART:-}"
unset FOREBAY_CUDART
if [[ -n "$simulated" ]]; then
  export LD_LIBRARY_PATH="$simulated:$LD_LIBRARY_PATH"
  # As a GPU has it: two devices, memory that the CPU cannot touch.
  export FOREBAY_SIM_DEVICES=2 FOREBAY_SIM_MEMORY=2GiB FOREBAY_SIM_CPU_ACCESS=0
  export FOREBAY_SIM_POISON=none FOREBAY_SIM_MAPPINGS=20000
fi

probe="$here/bin/forebay_probe"
if ! "$probe" machine --json "$out/machine.json"; then
  {
    echo "run.sh: no usable CUDA driver on this machine (the reason is above)."
    echo "  On a machine with an NVIDIA GPU: copy this folder there and start run.sh."
    echo "  In the repository: cargo xtask gpu --simulated runs it on the simulated driver."
  } >&2
  exit 3
fi

fact() { printf '%s\t%s\n' "$1" "$2" >>"$out/facts"; }
fact date "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
fact machine "$(uname -srm)"
cpu=""
while IFS=: read -r key value; do
  [[ "$key" == "model name"* ]] && { cpu="${value# }"; break; }
done </proc/cpuinfo
fact cpu "$cpu"
fact pack "$(cat "$here/version" 2>/dev/null)"

# Seconds for all steps together; what is left limits each.
deadline=$((SECONDS + 450))

# told NAME STATE SECONDS REASON
told() {
  printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$4" >>"$out/steps"
  printf '%-24s %-8s %4s s  %s\n' "$1" "$2" "$3" "$4"
}

skip() { told "$1" skipped 0 "$2"; }

# step NAME LIMIT COMMAND...: standard output and error go to NAME.log.
step() {
  local name="$1" limit="$2" start=$SECONDS status reason=""
  shift 2
  local left=$((deadline - SECONDS))
  if ((left < 5)); then
    skip "$name" "no time left"
    return
  fi
  ((limit > left)) && limit=$left
  # The shell's own word about a program that dies by a signal goes nowhere: the table has it.
  { timeout --kill-after=5 "$limit" "$@" >"$out/$name.log" 2>&1 </dev/null; } 2>/dev/null
  status=$?
  case $status in
    0) told "$name" ok $((SECONDS - start)) ""; return ;;
    124 | 137) reason="ended at its limit of $limit s" ;;
    *) reason="exit status $status: $(tail -n 1 "$out/$name.log" | tr '\t' ' ' | cut -c1-200)" ;;
  esac
  told "$name" failed $((SECONDS - start)) "$reason"
}

# json_step NAME LIMIT COMMAND...: a step whose standard output is JSON.
json_step() {
  local name="$1" limit="$2"
  shift 2
  step "$name" "$limit" bash -c '"${@:2}" >"$1"' json "$out/$name.json" "$@"
}

json_step doctor 30 "$here/bin/forebay" doctor --backend cuda --json
step rules 150 "$probe" rules --json "$out/rules.json"
step streams 60 "$probe" streams --library "$here/lib/libforebay.so" --seconds 20 \
  --json "$out/streams.json"
step latency 75 "$probe" latency --json "$out/latency.json"
for trace in "$here"/traces/*.csv.gz; do
  name="${trace##*/}"
  json_step "replay.${name%.csv.gz}" 60 "$here/bin/forebay" replay --backend cuda --json \
    --no-progress "$trace"
done
step demo 60 "$here/bin/forebay" demo --backend cuda --no-progress
# Program and, where it cannot run on a GPU, the reason.
while IFS=$'\t' read -r program reason; do
  if [[ -n "$reason" ]]; then
    skip "c.$program" "$reason"
  elif [[ "$program" == dlopen ]]; then
    step "c.$program" 30 "$here/c/$program" "$here/lib/libforebay.so"
  else
    step "c.$program" 30 "$here/c/$program"
  fi
done <"$here/c/list"

# The folder of CUDA's runtime, or why there is none: on a GPU never the simulated one.
runtime=""
no_runtime="no libcudart.so.12 found: FOREBAY_CUDART may name its folder"
find_runtime() {
  local folder
  if [[ -n "$simulated" ]]; then
    [[ -f "$simulated/libcudart.so.12" ]] && runtime="$simulated"
    return
  fi
  while IFS= read -r folder; do
    [[ -f "$folder/libcudart.so.12" ]] || continue
    if grep -q forebay_simcudart "$folder/libcudart.so.12"; then
      no_runtime="$folder has the simulated runtime, which is not for a GPU"
      continue
    fi
    runtime="$folder"
    return
  done < <(
    echo "$cudart_folder"
    tr ':' '\n' <<<"$LD_LIBRARY_PATH"
    ldconfig -p 2>/dev/null | sed -n 's,.*libcudart\.so\.12 .*=> \(.*\)/[^/]*$,\1,p'
    printf '%s\n' /usr/local/cuda*/lib64 /usr/local/lib/python3*/*-packages/nvidia/cuda_runtime/lib
  )
}
find_runtime

# both NAME LIMIT EXPECTED COMMAND...: without and with the preload library; EXPECTED is the file
# with what is to be printed, or - for a program that checks itself.
both() {
  local name="$1" limit="$2" expected="$3" preload="$here/lib/libforebay_preload.so"
  shift 3
  local run='if [[ $1 == - ]]; then "${@:2}"; else "${@:2}" | diff "$1" -; fi'
  step "$name" "$limit" bash -o pipefail -c "$run" run "$expected" "$@"
  step "$name.preload" "$limit" bash -o pipefail -c "$run" run "$expected" \
    env LD_PRELOAD="$preload" "$@"
}
both_skipped() { skip "$1" "$2"; skip "$1.preload" "$2"; }

both driver.nodes 30 - "$here/runtime/driver_nodes"
both driver.counted 30 - "$here/runtime/driver_counted"
if [[ -z "$runtime" ]]; then
  for program in calls nodes set_device sample; do both_skipped "runtime.$program" "$no_runtime"; done
else
  # Of the folder only the runtime: it may hold other libraries, such as a stub of the driver.
  mkdir -p "$out/cudart" && ln -sf "$runtime/libcudart.so.12" "$out/cudart/"
  with=(env LD_LIBRARY_PATH="$LD_LIBRARY_PATH:$out/cudart")
  both runtime.calls 30 "$here/runtime/calls.txt" "${with[@]}" "$here/runtime/calls"
  both runtime.nodes 30 - "${with[@]}" "$here/runtime/nodes"
  both runtime.set_device 30 - "${with[@]}" "$here/runtime/set_device"
  nvcc="$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)"
  if [[ -n "$simulated" ]]; then
    # Its kernels are functions of the CPU there.
    both runtime.sample 60 "$here/runtime/sample.txt" "${with[@]}" FOREBAY_SIM_CPU_ACCESS=1 \
      "$here/runtime/sample"
  elif [[ ! -x "$nvcc" ]]; then
    both_skipped runtime.sample "no nvcc to compile its kernels"
  else
    step runtime.compile 90 "$nvcc" -std=c++17 -O1 -cudart shared -x cu -o "$out/sample" \
      "$here/runtime/src/inference.cpp" "$here/runtime/src/kernels.cpp"
    if [[ -x "$out/sample" ]]; then
      # It may be linked with another major version: its own folder comes along.
      both runtime.sample 60 "$here/runtime/sample.txt" \
        env LD_LIBRARY_PATH="$LD_LIBRARY_PATH:$out/cudart:${nvcc%/bin/nvcc}/lib64" "$out/sample"
    else
      both_skipped runtime.sample "not compiled"
    fi
  fi
fi

echo
for table in rules latency streams; do
  [[ -f "$out/$table.log" ]] && cat "$out/$table.log" && echo
done
"$probe" collect --from "$out" --json "$out/gpu.json"
status=$?
echo "results: $out/gpu.json"
exit $status
