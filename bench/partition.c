/* How long does the RoundPipe partitioner take (processor time), choice by the slot recurrence included? A 94-layer, 128-expert model under
 * LoRA for 8 devices of 24 GiB (Qwen3-235B-A22B: 2.6 GB of 8-bit weights a layer), where the original takes 1.47 s (arXiv 2604.27085); and
 * its growth with the number of layers, all equal and all different. */
#include "machine.h"
#include "partition/roundpipe.h"

#include "core/alloc.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DEVICES = 8, REPEATS = 5, SIZES = 7, LAYERS_MOST = RH_PARTITION_LAYERS_MOST - 1 };
static const double original_ms = 1470;

static double now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Blocks and a head. spread 0: all blocks equal; 0.3: each off by up to 30 %, as measured layers of mixed kinds are. */
static void make_costs(int blocks, double spread, struct rh_layer_cost *layer, struct rh_costs *out)
{
	srand(20261121);
	for (int l = 0; l <= blocks; l++) {
		double off = 1 + spread * (2.0 * rand() / RAND_MAX - 1);
		layer[l] = (struct rh_layer_cost){.forward_s = 0.043016 * off,
		                                  .recompute_s = 0.043016 * off,
		                                  .backward_s = 0.058376 * off,
		                                  .upload_bytes = (int64_t)(2.6e9 * off),
		                                  .gradient_bytes = 40 << 20,
		                                  .saved_bytes = (int64_t)(1.2e9 * off),
		                                  .boundary_bytes = 64 << 20,
		                                  .forward_workspace_bytes = 700 << 20,
		                                  .backward_workspace_bytes = 1400 << 20};
	}
	layer[blocks].forward_s = 0.042444;
	layer[blocks].recompute_s = 0;
	layer[blocks].backward_s = 0.043294;
	*out = (struct rh_costs){.layer = layer, .layers = blocks + 1, .hop_s = 0.0032, .tokens = 8192};
}

/* Milliseconds, the least of some; negative on a fault. */
static double measure(int blocks, double spread, struct rh_partition *shown)
{
	struct rh_layer_cost *layer = rh_alloc((size_t)blocks + 1, sizeof *layer);
	struct rh_costs costs;
	double best = INFINITY;
	if (!layer)
		return -1;
	make_costs(blocks, spread, layer, &costs);
	struct rh_partition_request request = {
	        .costs = &costs, .cap_bytes = INT64_C(23) << 30, .devices = DEVICES, .micro_batches = 16, .rounds = 2, .steps = 1};
	for (int i = 0; i < (blocks > 128 ? 2 : REPEATS) && best >= 0; i++) {
		struct rh_partition found;
		double began = now_ms();
		int rc = rh_partition_make(&request, &found);
		best = rc ? -1 : fmin(best, now_ms() - began);
		if (rc)
			fprintf(stderr, "%d layers: %s\n", blocks, rh_error(rc));
		*shown = found;
		rh_partition_free(&found);
	}
	rh_free(layer);
	return best;
}

/* A bar a row, on a logarithmic scale: one character doubles four times as slowly as the layers. */
static void plot(double ms)
{
	for (double at = 0.1; at < ms; at *= 1.19)
		putchar('#');
	putchar('\n');
}

int main(void)
{
	static const int sizes[] = {8, 16, 32, 64, 94, 128, LAYERS_MOST};
	struct rh_partition shown;
	double growth[SIZES][2], worst = 0;
	printf("%6s %12s %12s\n", "layers", "equal, ms", "uneven, ms");
	for (int i = 0; i < SIZES; i++) {
		for (int k = 0; k < 2; k++) {
			growth[i][k] = measure(sizes[i], k ? 0.3 : 0, &shown);
			if (growth[i][k] < 0)
				return 1;
		}
		printf("%6d %12.2f %12.2f  ", sizes[i], growth[i][0], growth[i][1]);
		plot(growth[i][1]);
		if (sizes[i] == 94)
			worst = fmax(growth[i][0], growth[i][1]);
	}
	char name[256];
	bench_machine(name, sizeof name);
	printf("{\"bench\": \"partition\", \"value\": %.3f, \"unit\": \"ms for 94 layers on 8 devices\", \"reference\": %.0f, "
	       "\"reference_is\": \"the original's 1.47 s\", \"ratio\": %.1f, \"growth_ms\": {",
	       worst, original_ms, original_ms / worst);
	for (int i = 0; i < SIZES; i++)
		printf("%s\"%d\": [%.3f, %.3f]", i ? ", " : "", sizes[i], growth[i][0], growth[i][1]);
	printf("}, \"machine\": \"%s, one thread\"}\n", name);
	return 0;
}
