#!/bin/sh
# Compiles the programs for the kernel, as they are shipped in objects/: run it after a change of a source.
# Usage: bpf/build.sh [DIR]
# Needs clang, libbpf-dev and the kernel's headers (linux-libc-dev). The programs use no types of the kernel's insides, so that
# one object serves every kernel from 6.6 on and every little-endian machine.
set -eu
out=$(realpath -m "${1:-$(dirname "$0")/objects}")
cd "$(dirname "$0")"
mkdir -p "$out"
for name in orca_switch orca_agent datacast; do
	clang -O2 -g -Wall -Werror -mcpu=v3 -target bpfel -fdebug-compilation-dir=. -I"/usr/include/$(uname -m)-linux-gnu" \
		-c "$name.c" -o "$out/$name.o"
	# What is left of -g are the types of the maps, which loaders need.
	llvm-strip -g "$out/$name.o"
done
# What they were made from and with: a test compares.
{
	cat -- *.c *.h | sha256sum | cut -d ' ' -f 1
	clang --version | head -n 1
} >"$out/BUILT"
