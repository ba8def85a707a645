/* bench/gpu-check.sh rehearsed: in the tree on an emulated GPU, every part to its end; and as the bundle of `make gpu-bundle` is, unpacked
 * into an empty folder. */
#include "check.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK "bench/gpu-check.sh"

static int shell(const char *format, ...)
{
	char line[2048];
	va_list args;
	va_start(args, format);
	int length = vsnprintf(line, sizeof line, format, args);
	va_end(args);
	assert_true(length > 0 && (size_t)length < sizeof line);
	int status = system(line);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Builds with a sanitizer take many times as long and show nothing that their own tests do not. */
static void need(const char *path)
{
	const char *build = getenv("RH_BUILD");
	if (build && strcmp(build, "build/release") != 0)
		check_skip("bench/gpu-check.sh is rehearsed in the release build only");
	if (access(path, R_OK))
		check_skip("%s is not here: the bundle needs nvcc", path);
}

static void test_every_part_runs_to_its_end_on_an_emulated_gpu(void **state)
{
	(void)state;
	char dir[] = "/tmp/rh-gpu-XXXXXX";
	need("build/release/gpu-tools-emu");
	assert_non_null(mkdtemp(dir));
	/* cards of 24 GB, of which a desktop has a part */
	int status = shell("RH_EMU_MACHINE='4 13000 8 9 23000' DEVICE=emu:1 OUT=%s " CHECK " >%s/log 2>&1", dir, dir);
	if (status)
		shell("cat %s/log", dir);
	assert_int_equal(status, 0);
	static const char *const parts[] = {"clocks", "ops",      "parity",  "rtx",  "kernels", "copies", "steps",     "desktop",  "peers",
	                                    "races",  "steps-8b", "lora-8b", "long", "saves",   "demo",   "steps-moe", "sanitizer"};
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
		assert_int_equal(shell("grep -q '\"part\": \"%s\".*\"seconds\"' %s/results.jsonl", parts[i], dir), 0);
	assert_int_equal(shell("grep -q '\"part\": \"end\".*\"failures\": 0' %s/results.jsonl", dir), 0);
	assert_int_equal(shell("grep -q '\"result\": \"failed\"' %s/results.jsonl", dir), 1);
	assert_int_equal(shell("grep -q 'memory left for the GPU.s libraries\", \"value\": 256.0' %s/results.jsonl", dir), 0);
	for (int point = 1; point <= 6; point++)
		assert_int_equal(shell("grep -q '\"point\": %d, .*\"measured\": [0-9]' %s/results.jsonl", point, dir), 0);
	assert_int_equal(shell("grep -q '\"point\": 1, .*\"missed\": \"\"' %s/results.jsonl", dir), 0);
	assert_int_equal(shell("grep -q '\"point\": 2, .*an emulated GPU has none' %s/results.jsonl", dir), 0);
	assert_int_equal(shell("rm -rf %s", dir), 0);
}

/* The two calls of a lent machine: parts with seconds of their own, in their order, within the seconds that the machine gives a call. */
static void test_the_calls_name_parts_and_seconds(void **state)
{
	(void)state;
	for (int call = 1; call <= 2; call++) {
		assert_int_equal(shell("eval \"$(grep -E '^(all|call_%d)=' " CHECK ")\"; sum=0; for part in $call_%d; do "
		                       "case \" $all \" in *\" ${part%%=*} \"*) ;; *) exit 1 ;; esac; sum=$((sum + ${part#*=})); done; "
		                       "[ $sum -gt 200 ] && [ $sum -le 360 ]",
		                       call, call),
		                 0);
	}
}

/* Programs of a toolkit of CUDA 12 are all that somebody built: an old driver gets those. (What they say: there is no GPU.) */
static void test_an_old_driver_gets_the_programs_that_are_there(void **state)
{
	(void)state;
	char dir[] = "/tmp/rh-gpu-XXXXXX";
	need("build/release/gpu-tools");
	if (!access("/dev/nvidiactl", F_OK))
		check_skip("this machine has an NVIDIA driver: what is said without one is not tried");
	assert_non_null(mkdtemp(dir));
	assert_int_equal(shell("mkdir %s/build && ln -s $PWD/build/release/gpu-tools $PWD/build/release/roundhouse %s/build && "
	                       "printf '#!/bin/sh\\necho 550.54.14\\n' >%s/nvidia-smi && chmod +x %s/nvidia-smi",
	                       dir, dir, dir, dir),
	                 0);
	assert_int_equal(shell("PATH=%s:$PATH BUILD=%s/build OUT=%s/none " CHECK " >%s/out 2>%s/err", dir, dir, dir, dir, dir), 3);
	if (shell("[ ! -s %s/out ] && grep -q 'no NVIDIA driver' %s/err", dir, dir)) {
		shell("cat %s/err", dir);
		fail();
	}
	assert_int_equal(shell("rm -rf %s", dir), 0);
}

/* PTX, as an RTX 50's drivers before 580 know CUDA 12 alone. */
static void test_programs_for_old_drivers_have_code_for_later_gpus(void **state)
{
	(void)state;
	need("build/release/roundhouse-cuda12");
	assert_int_equal(shell("grep -a -q '^\\.target sm_90' build/release/roundhouse-cuda12"), 0);
}

static void test_the_bundle_unpacked_elsewhere_says_that_there_is_no_gpu_and_rehearses(void **state)
{
	(void)state;
	char dir[] = "/tmp/rh-gpu-XXXXXX";
	need("build/gpu-bundle.tar.xz");
	assert_non_null(mkdtemp(dir));
	assert_int_equal(shell("tar -xJf build/gpu-bundle.tar.xz -C %s", dir), 0);
	assert_int_equal(shell("cd %s && DEVICE=emu:1 OUT=%s/emu " CHECK " kernels copies >log 2>&1", dir, dir), 0);
	if (!access("/dev/nvidiactl", F_OK)) {
		assert_int_equal(shell("rm -rf %s", dir), 0);
		check_skip("this machine has an NVIDIA driver: what is said without one is not tried");
	}
	assert_int_equal(shell("cd %s && OUT=%s/none " CHECK " >out 2>err", dir, dir), 3);
	assert_int_equal(shell("cd %s && [ ! -s out ] && [ $(wc -l <err) = 1 ] && grep -q 'no NVIDIA driver' err", dir), 0);
	assert_int_equal(shell("cd %s && " CHECK " nonsense >out 2>err", dir), 2);
	assert_int_equal(shell("rm -rf %s", dir), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_every_part_runs_to_its_end_on_an_emulated_gpu),
	        cmocka_unit_test(test_the_calls_name_parts_and_seconds),
	        cmocka_unit_test(test_an_old_driver_gets_the_programs_that_are_there),
	        cmocka_unit_test(test_programs_for_old_drivers_have_code_for_later_gpus),
	        cmocka_unit_test(test_the_bundle_unpacked_elsewhere_says_that_there_is_no_gpu_and_rehearses),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
