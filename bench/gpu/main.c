/* gpu-tools VERB DEVICE [argument]...: what bench/gpu-check.sh runs on a GPU, or on an emulated one. Not part of the product.
 *   ops NAME              a test program of tests/cuda, every op on the device; without a name: the names
 *   products scaled kernels copies DEVICE   rates; of products and kernels also one part: "DEVICE peak", "DEVICE norms"
 *   device DEVICE         opens it, runs one product, says what is there, or why it cannot be used
 *   trace TRACE.json KEYS...         a training run (keys as of `roundhouse train`), its streams recorded */
#include "bench/gpu/bench.h"

#include <stdio.h>
#include <string.h>

#define DECLARE(name) int name##_main(void);
#define ENTRY(name)   {#name, name##_main},
GPU_TESTS(DECLARE)

static const struct {
	const char *name;
	int (*run)(void);
} tests[] = {GPU_TESTS(ENTRY)};

static const struct {
	const char *name;
	int (*run)(int argc, char **argv);
} benches[] = {{"products", bench_products}, {"scaled", bench_scaled}, {"kernels", bench_kernels},
               {"copies", bench_copies},     {"trace", bench_trace},   {"device", bench_about}};

static int run_test(const char *name)
{
	for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
		if (!name)
			puts(tests[i].name);
		else if (!strcmp(name, tests[i].name))
			return tests[i].run();
	}
	return name ? 2 : 0;
}

int main(int argc, char **argv)
{
	if (argc >= 2 && !strcmp(argv[1], "ops"))
		return run_test(argc > 2 ? argv[2] : NULL);
	for (size_t i = 0; argc >= 3 && i < sizeof benches / sizeof *benches; i++)
		if (!strcmp(argv[1], benches[i].name)) {
			int rc = benches[i].run(argc - 2, argv + 2);
			if (rc)
				fprintf(stderr, "gpu-tools %s: %s\n", argv[1], rh_error(rc));
			return rc ? 1 : 0;
		}
	fprintf(stderr, "usage: gpu-tools ops [NAME] | device DEVICE | products DEVICE | scaled DEVICE | kernels DEVICE | copies DEVICE | "
	                "trace TRACE.json "
	                "KEYS...\n");
	return 2;
}
