/* A rig of an 8B's shapes, of which no weights are read, on the simulated machine of eight devices. */
#ifndef RH_TESTS_TRAIN_EIGHT_H
#define RH_TESTS_TRAIN_EIGHT_H

#include "train/deep.h"

#include "config/hardware.h"
#include "session/session.h"

enum { EIGHT_DEVICES = 8, EIGHT_MICRO_BATCHES = 64 };

/* Llama-3.1-8B's, of which no weights are read. */
#define EIGHT_CONFIG                                                                                                                       \
	"{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 4096, \"intermediate_size\": 14336, "     \
	"\"num_hidden_layers\": 32, \"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"head_dim\": 128, \"vocab_size\": 128256, "  \
	"\"max_position_embeddings\": 8192, \"rms_norm_eps\": 1e-5, \"rope_theta\": 500000.0, \"hidden_act\": \"silu\", "                  \
	"\"tie_word_embeddings\": false}"

struct eight {
	struct deep deep;
	struct rh_hardware hardware;
	struct rh_session_machine machine;
};

static inline void eight_open(struct eight *eight, int64_t staleness, double clip)
{
	char path[256];
	deep_open(&eight->deep, "qwen3", 1);
	snprintf(path, sizeof path, "%s/config.json", eight->deep.dir);
	check_ok(rh_file_write_whole(path, EIGHT_CONFIG, strlen(EIGHT_CONFIG)));
	check_ok(rh_hardware_find("examples/hardware/rtx4090x8.yaml", &eight->hardware));
	eight->machine =
	        (struct rh_session_machine){.hardware = &eight->hardware, .devices = EIGHT_DEVICES, .ram_bytes = eight->hardware.host.ram};
	struct rh_config *config = &eight->deep.rig.config;
	config->dtype = RH_BF16;
	config->state_layout = RH_LAYOUT_SPLIT;
	config->per_device_train_batch_size = 2;
	config->gradient_accumulation_steps = EIGHT_MICRO_BATCHES;
	config->max_length = 2048;
	config->optimizer_staleness = staleness;
	config->max_grad_norm = clip;
}

static inline void eight_close(struct eight *eight)
{
	rh_hardware_free(&eight->hardware);
	deep_close(&eight->deep);
}

#endif
