# Reads what ptxas said of every kernel (registers, shared memory, spills; names demangled) and what the emulated tests launched it with (lines
# "threads dynamic-bytes name"), and prints a table with the theoretical occupancy: warps an SM can hold of it, over those it has room for.
# Fails on a spill of more than two registers, of attention's kernels of more than 24, whose loops of a thousand instructions reload a few of them once (but for sm_120, where it
# is a note: the card this is made for is sm_89), on shared memory beyond every architecture's (the emulation holds a launch to its SM's), on a
# kernel that no test launches.
function name_of(text) # "void k<__nv_bfloat16, 64>(args)" -> "k<rh_bf16, 64>"
{
	sub(/^void /, "", text)
	sub(/\([^()]*\)$/, "", text)
	gsub(/__nv_bfloat16/, "rh_bf16", text)
	gsub(/__half/, "rh_f16", text)
	return text
}
function least(a, b)
{
	return a < b ? a : b
}
# Registers are given to a warp by 256, shared memory to a block by 128 bytes and 1 KB of the system's. (CUDA programming guide.)
function occupancy(arch, registers, shared, warps,    blocks, a_warp)
{
	a_warp = int((registers * 32 + 255) / 256) * 256
	blocks = int(int(65536 / a_warp) / warps)
	blocks = least(blocks, int(sm_warps[arch] / warps))
	blocks = least(blocks, sm_blocks[arch])
	blocks = least(blocks, int(sm_shared[arch] / (int((shared + 127) / 128) * 128 + 1024)))
	return blocks * warps / sm_warps[arch]
}
function fault(text)
{
	print "fault: " text
	faults++
}
BEGIN {
	split("sm_80 sm_89 sm_90 sm_120", archs, " ")
	split("64 48 64 48", column, " "); for (i in archs) sm_warps[archs[i]] = column[i]
	split("32 24 32 24", column, " "); for (i in archs) sm_blocks[archs[i]] = column[i]
	split("164 100 228 100", column, " "); for (i in archs) sm_shared[archs[i]] = column[i] * 1024
	split("163 99 227 99", column, " "); for (i in archs) block_shared[archs[i]] = column[i] * 1024
}
FILENAME ~ /launches/ {
	threads = $1; bytes = $2
	$1 = $2 = ""; sub(/^ +/, "")
	if (threads > most_threads[$0]) most_threads[$0] = threads
	if (bytes + 0 > most_bytes[$0] + 0) most_bytes[$0] = bytes
	next
}
/Compiling entry function/ {
	split($0, part, "'")
	kernel = name_of(part[2]); arch = part[4]
	if (!(kernel in known)) { known[kernel] = 1; order[++kernels] = kernel }
}
/spill stores/ {
	# dk and dv begin from sums of later queries and go back to them, outside of the loop over queries
	most = kernel ~ /^attention_dk_dv</ ? 256 : kernel ~ /^attention_(forward|dq|pass)</ ? 96 : kernel ~ /^attention_keys</ ? 48 : 8
	if ($5 + $9 > 0 && (arch == "sm_120" || ($5 <= most && $9 <= most))) print "note: " kernel " spills on " arch ": " $0
	else if ($5 + $9 > 0) fault(kernel " spills on " arch ": " $0)
}
/Used [0-9]+ registers/ {
	match($0, /Used [0-9]+/); used[kernel, arch] = substr($0, RSTART + 5, RLENGTH - 5)
	if (match($0, /[0-9]+ bytes smem/)) shared[kernel] = substr($0, RSTART, RLENGTH) + 0
}
END {
	printf "%-44s %7s %7s %7s  %s\n", "kernel", "threads", "static", "dynamic", "registers / occupancy: sm_80, sm_89, sm_90, sm_120"
	for (k = 1; k <= kernels; k++) {
		kernel = order[k]
		if (!(kernel in most_threads)) { fault(kernel " is launched by no emulated test"); continue }
		bytes = shared[kernel] + most_bytes[kernel]
		line = sprintf("%-44s %7d %7d %7d ", kernel, most_threads[kernel], shared[kernel], most_bytes[kernel])
		fits = 0
		for (i = 1; i <= 4; i++) {
			arch = archs[i]
			if (!((kernel, arch) in used)) continue
			if (bytes > block_shared[arch]) { line = line "      -    "; continue }
			fits = 1
			if (used[kernel, arch] * most_threads[kernel] > 65536) fault(kernel " wants more registers than " arch " has")
			line = line sprintf(" %4d /%4d%%", used[kernel, arch], 100 * occupancy(arch, used[kernel, arch], bytes, most_threads[kernel] / 32))
		}
		if (!fits) fault(kernel " wants " bytes " bytes of shared memory, which no SM has")
		print line
	}
	print kernels " kernels, " faults + 0 " faults"
	exit faults > 0 || kernels == 0
}
