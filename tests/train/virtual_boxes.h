/* Boxes whose devices take a fixed time for each launch and none for anything else. */
#ifndef RH_TESTS_TRAIN_VIRTUAL_BOXES_H
#define RH_TESTS_TRAIN_VIRTUAL_BOXES_H

#include "limit_time.h"
#include "train/deep.h"

#include "config/hardware.h"
#include "forecast/forecast_boxes.h"

enum { BOXES_MOST = 4, HIDDEN = 32, HANG_S = 300 };

struct boxes {
	struct deep deep;
	struct rh_hardware hardware[BOXES_MOST];
	struct rh_session_machine machine[BOXES_MOST];
	struct rh_virtual_line line[BOXES_MOST - 1][2];
	int first[BOXES_MOST + 1], boxes;
};

static inline struct rh_hardware boxes_hardware(double launch_s)
{
	struct rh_hardware out = {.name = (char *)(uintptr_t) "paced", .devices = 1};
	for (int p = 0; p < RH_PRODUCTS; p++)
		out.device.peak[p] = 1e18;
	out.device.other_flops_per_s = out.device.memory_bytes_per_s = 1e18;
	out.device.launch_s = launch_s;
	out.device.memory = (int64_t)1 << 40;
	out.link = (struct rh_hardware_link){.up_bytes_per_s = 1e15, .down_bytes_per_s = 1e15, .both_bytes_per_s = 2e15};
	out.host = (struct rh_hardware_host){.cores = 64, .dram_bytes_per_s = 1e16};
	for (int l = 0; l < RH_LAYOUTS; l++)
		out.host.optimizer_bytes_per_s[l] = 1e15;
	return out;
}

/* blocks[k]: of box k. */
static inline void boxes_open_of(struct boxes *at, const char *model, int boxes, const int *blocks, enum rh_mode mode, const char *schedule)
{
	*at = (struct boxes){.boxes = boxes};
	for (int k = 0; k < boxes; k++) /* the embedding is the first box's, the head the last one's */
		at->first[k + 1] = at->first[k] + blocks[k] + !k + (k + 1 == boxes);
	deep_open(&at->deep, model, at->first[boxes] - 2);
	struct rh_config *config = &at->deep.rig.config;
	config->mode = mode;
	config->boxes = boxes;
	config->schedule = (char *)(uintptr_t)schedule;
	config->per_device_train_batch_size = 1;
	config->max_length = 64;
	config->max_grad_norm = 0;
	for (int k = 0; k < boxes; k++) {
		at->hardware[k] = boxes_hardware(2e-4);
		at->machine[k] = (struct rh_session_machine){.hardware = &at->hardware[k], .devices = 1};
	}
}

static inline void boxes_open(struct boxes *at, int boxes, const int *blocks, enum rh_mode mode, const char *schedule)
{
	boxes_open_of(at, "qwen3", boxes, blocks, mode, schedule);
}

static inline void boxes_close(struct boxes *at)
{
	at->deep.rig.config.schedule = NULL;
	deep_close(&at->deep);
}

#endif
