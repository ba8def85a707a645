/* Other trainers' keys: each has an answer, and a configuration of theirs becomes one of this program. */
#include "place.h"

#include "config/config_internal.h"
#include "config/convert.h"

#include <stdio.h>

static FILE *keys_of_others; /* opened before the tests go to their folder */

static int open_place(void **state)
{
	keys_of_others = fopen("tests/config/keys_of_others.txt", "r");
	return keys_of_others ? place_make(state) : -1;
}

/* The answer names a key that this program has, or says that it is not built, or why nothing is lost. */
static void check_answer(const char *name)
{
	char said[1024];
	if (config_key_find(name) >= 0)
		return;
	const struct config_elsewhere *found = config_elsewhere_find(name);
	if (!found)
		fail_msg("%s has no answer", name);
	config_suggest(name, "train", ORIGIN_FILE, said, sizeof said);
	if (!strstr(said, name))
		fail_msg("%s: %s", name, said);
	if (found->key && (!strstr(said, "here it is ") || !strstr(said, found->key)))
		fail_msg("%s: %s is not named in: %s", name, found->key, said);
	if (!found->key && !strstr(said, "not built") && !strstr(said, "remove it") && !strstr(said, "never overwritten") &&
	    !strstr(said, "its opposite is "))
		fail_msg("%s: no mend in: %s", name, said);
}

static void test_every_key_of_four_trainers_has_an_answer(void **state)
{
	(void)state;
	char line[256];
	int keys = 0;
	while (fgets(line, sizeof line, keys_of_others)) {
		line[strcspn(line, "\n")] = 0;
		if (!*line || *line == '#')
			continue;
		check_answer(line);
		keys++;
	}
	fclose(keys_of_others);
	printf("%d keys\n", keys);
	assert_true(keys > 1050);
}

static void test_answers_name_keys_that_are_there(void **state)
{
	(void)state;
	for (size_t i = 0; i < config_elsewheres; i++) {
		const char *names = config_elsewhere[i].names, *key = config_elsewhere[i].key;
		assert_true(key ? config_key_find(key) >= 0 : config_elsewhere[i].note != NULL);
		for (size_t length; (length = config_elsewhere_next(&names)); names += length) {
			char name[64];
			snprintf(name, sizeof name, "%.*s", (int)length, names);
			for (size_t k = 0; k < config_key_count; k++) /* an answer for a key that this program has would hide it */
				assert_string_not_equal(name, config_keys[k].name);
			if (!strchr(name, '*'))
				if (config_elsewhere_find(name) != &config_elsewhere[i])
					fail_msg("an earlier entry takes %s", name);
		}
	}
}

/* ---- convert ---- */

/* Each part of `words` (parted by |) is in `text`, in whatever order. */
static void has_each(const char *text, const char *words)
{
	char part[256];
	for (const char *at = words; *at; at += strcspn(at, "|"), at += *at == '|') {
		snprintf(part, sizeof part, "%.*s", (int)strcspn(at, "|"), at);
		if (!strstr(text, part))
			fail_msg("'%s' is not in: %s", part, text);
	}
}

/* `yaml` holds the parts of `lines`, and loads; the comments hold those of `comments`. Parts are parted by |. */
static void converts(const char *old, const char *lines, const char *comments)
{
	struct rh_converted converted;
	check_ok(rh_file_write_whole("old.yaml", old, strlen(old)));
	check_ok(rh_config_convert("old.yaml", &converted));
	has_each(converted.yaml.bytes ? converted.yaml.bytes : "", lines);
	struct rh_text said = {0};
	check_ok(rh_text_printf(&said, "%s%s", converted.idle.bytes ? converted.idle.bytes : "",
	                        converted.left.bytes ? converted.left.bytes : ""));
	has_each(said.bytes, comments);
	rh_text_free(&said);
	rh_converted_free(&converted);
}

static void test_configurations_are_converted(void **state)
{
	(void)state;
	converts(
	        "base_model: org/model\nadapter: qlora\nload_in_4bit: true\ndatasets:\n  - path: a.jsonl\n    type: alpaca\n  - path: "
	        "b.jsonl\n"
	        "val_set_size: 0.05\nsequence_len: 4096\nsample_packing: true\nlora_r: 32\nlora_alpha: 16\nlora_target_linear: true\n"
	        "micro_batch_size: 2\nnum_epochs: 4\noptimizer: adamw_bnb_8bit\nlr_scheduler: cosine\nbf16: auto\nevals_per_epoch: 4\n"
	        "saves_per_epoch: 1\nwarmup_ratio: 0.1\ntrain_on_inputs: false\nspecial_tokens:\n  pad_token: x\n  eos_token: </s>\n"
	        "wandb_project: p\nlora_model_dir:\n",
	        "model_name_or_path: org/model\n|use_peft: true\n"
	        "|load_in_4bit: true\n|train_file: [a.jsonl, b.jsonl]\n|eval_split: 0.05\n|max_length: "
	        "4096\n|packing: "
	        "true\n|lora_r: 32\n|lora_alpha: 16\n|lora_target_modules: all-linear\n|per_device_train_batch_size: 2\n|num_train_epochs: "
	        "4\n|optim: adamw_torch\n|lr_scheduler_type: cosine\n|eval_strategy: steps\n|eval_steps: 0.0625\n|save_strategy: "
	        "epoch\n|warmup_steps: 0.1\n|assistant_only_loss: true\n|eos_token: </s>\n|lora_dropout: 0\n",
	        "# optimizer: |split8|# wandb_project: |# bf16: ");
	converts("model_name_or_path: org/model\nstage: sft\nfinetuning_type: lora\nlora_rank: 16\nlora_target: q_proj,v_proj\n"
	         "dataset: identity,alpaca\ndataset_dir: mine\ntemplate: llama3\nloraplus_lr_ratio: 16\npure_bf16: true\noptim: "
	         "adamw_torch\n",
	         "use_peft: true\n|lora_r: 16\n|lora_alpha: 32\n|lora_dropout: 0\n|lora_target_modules: [q_proj,v_proj]\n|train_file: "
	         "[identity,alpaca]\n|dataset_info: mine/dataset_info.json\n|max_length: 2048\n|optim: adamw_torch\n|loraplus_lr_ratio: "
	         "16\n",
	         "# template: |# pure_bf16: |assistant_only_loss: true");
	converts("finetuning_type: full\nstage: rm\npref_beta: 0.1\nfreeze_trainable_layers: 2\nplugins: [a]\n",
	         "beta: 0.1\n|max_length: 2048",
	         "# stage: |not built|# freeze_trainable_layers: |an adapter comes nearest|# plugins: |# finetuning_type: "
	         "all weights");
	converts("finetuning_type: full\nstage: dpo\npref_beta: 0.2\npref_ftx: 0.3\npref_loss: ipo\nkto_chosen_weight: 2\n",
	         "beta: 0.2\n|loss_type: [ipo, sft]\n|loss_weights: [1, 0.3]\n|desirable_weight: 2\n", "# stage: loss_type says it");
	converts("base_model: m\nrl: kto\nrl_beta: 0.3\n", "loss_type: kto\n|beta: 0.3\n", "");
	converts("base_model: m\nval_set_size: 0.0\n", "model_name_or_path: m\n", "# val_set_size: no rows are held out");
	/* what this program would refuse is not written */
	converts("learning_rate: much\nlr_scheduler: rex\nno_such_key: 1\nlora_r: 4\nlora_rank: 8\nval_set_size: 100\n", "lora_r: 4\n",
	         "# learning_rate: |'much'|# lr_scheduler: |'rex'|# no_such_key: no trainer|# lora_rank: lora_r is written|# "
	         "val_set_size: ");
	struct rh_converted converted;
	check_ok(rh_file_write_whole("old.yaml", "- a\n", 4));
	assert_int_equal(rh_config_convert("old.yaml", &converted), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "expected lines of the form key: value"));
	static const char itself[] = "lora_target_modules: &a [*a]\n";
	check_ok(rh_file_write_whole("old.yaml", itself, strlen(itself)));
	assert_int_equal(rh_config_convert("old.yaml", &converted), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "old.yaml:1: "));
}

/* All that is written loads as one configuration. */
static void test_what_is_converted_loads(void **state)
{
	(void)state;
	static const char old[] =
	        "base_model: model\nadapter: lora\ndatasets: [{path: train.jsonl, type: chat_template}]\nlora_r: 8\n"
	        "lora_alpha: 16\nmicro_batch_size: 1\nnum_epochs: 1\nevals_per_epoch: 2\nval_set_size: 0.5\nlr_scheduler: "
	        "linear\noptimizer: paged_adamw_32bit\nbf16: false\n";
	struct rh_converted converted;
	struct rh_config config;
	check_ok(rh_file_write_whole("old.yaml", old, strlen(old)));
	check_ok(rh_config_convert("old.yaml", &converted));
	check_ok(load(converted.yaml.bytes, NULL, &config));
	assert_true(config.use_lora && config.lora_r == 8 && config.eval_steps == 0.5 && config.eval_split == 0.5);
	rh_config_free(&config);
	rh_converted_free(&converted);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_every_key_of_four_trainers_has_an_answer),
	        cmocka_unit_test(test_answers_name_keys_that_are_there),
	        cmocka_unit_test(test_configurations_are_converted),
	        cmocka_unit_test(test_what_is_converted_loads),
	};
	return cmocka_run_group_tests(tests, open_place, place_remove);
}
