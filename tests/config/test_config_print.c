/* A configuration printed loads back the same; help lists what there is to say. */
#include "place.h"

static void same_text(const char *a, const char *b)
{
	if (a && b)
		assert_string_equal(a, b);
	else
		assert_true(!a && !b);
}

/* Equal in everything but --json: pointers followed, the rest byte by byte. */
static void assert_same(const struct rh_config *a, const struct rh_config *b)
{
	struct rh_config x = *a, y = *b;
	char **const texts[][2] = {{&x.model_name_or_path, &y.model_name_or_path},
	                           {&x.config_name, &y.config_name},
	                           {&x.adapter_name_or_path, &y.adapter_name_or_path},
	                           {&x.output_dir, &y.output_dir},
	                           {&x.dataset_info, &y.dataset_info},
	                           {&x.chat_template, &y.chat_template},
	                           {&x.chat_template_date, &y.chat_template_date},
	                           {&x.dataset_text_field, &y.dataset_text_field},
	                           {&x.eos_token, &y.eos_token},
	                           {&x.resume_from_checkpoint, &y.resume_from_checkpoint},
	                           {&x.device, &y.device},
	                           {&x.schedule, &y.schedule},
	                           {&x.optim_args, &y.optim_args},
	                           {&x.prompt, &y.prompt},
	                           {&x.link_identity, &y.link_identity},
	                           {&x.link_below, &y.link_below},
	                           {&x.link_above, &y.link_above},
	                           {&x.link_peer_below, &y.link_peer_below},
	                           {&x.link_peer_above, &y.link_peer_above}};
	for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
		same_text(*texts[i][0], *texts[i][1]);
		*texts[i][0] = *texts[i][1] = NULL;
	}
	struct rh_list *const lists[][2] = {{&x.lora_target_modules, &y.lora_target_modules},
	                                    {&x.train_file, &y.train_file},
	                                    {&x.validation_file, &y.validation_file},
	                                    {&x.data_columns, &y.data_columns},
	                                    {&x.data_weights, &y.data_weights},
	                                    {&x.rope_scaling, &y.rope_scaling},
	                                    {&x.lr_scheduler_kwargs, &y.lr_scheduler_kwargs},
	                                    {&x.box_cuts, &y.box_cuts},
	                                    {&x.box_hardware, &y.box_hardware},
	                                    {&x.link_mbit_per_second, &y.link_mbit_per_second},
	                                    {&x.link_latency_ms, &y.link_latency_ms},
	                                    {&x.parts, &y.parts},
	                                    {&x.lora_target_parameters, &y.lora_target_parameters},
	                                    {&x.lora_modules_to_save, &y.lora_modules_to_save}};
	for (size_t l = 0; l < sizeof lists / sizeof *lists; l++) {
		assert_int_equal(lists[l][0]->count, lists[l][1]->count);
		for (size_t i = 0; i < lists[l][0]->count; i++)
			assert_string_equal(lists[l][0]->item[i], lists[l][1]->item[i]);
		*lists[l][0] = *lists[l][1] = (struct rh_list){0};
	}
	for (int64_t i = 0; i < a->forward_cut_count && i < b->forward_cut_count; i++)
		assert_int_equal(a->forward_cuts[i], b->forward_cuts[i]);
	for (int64_t i = 0; i < a->backward_cut_count && i < b->backward_cut_count; i++)
		assert_int_equal(a->backward_cuts[i], b->backward_cuts[i]);
	x.forward_cuts = y.forward_cuts = x.backward_cuts = y.backward_cuts = NULL;
	x.json = y.json = 0;
	assert_memory_equal(&x, &y, sizeof x);
}

static void round_trip(const char *verb, struct rh_config *config)
{
	struct rh_text text = {0}, again = {0};
	struct rh_config back;
	check_ok(rh_config_print(config, &text));
	check_ok(rh_file_write_whole("printed.yaml", text.bytes, text.length));
	char *argv[] = {(char[]){"printed.yaml"}};
	int rc = rh_config_load(verb, 1, argv, NULL, &back);
	if (rc)
		print_error("%s\n%s", rh_error(rc), text.bytes);
	check_ok(rc);
	assert_same(config, &back);
	check_ok(rh_config_print(&back, &again));
	assert_string_equal(text.bytes, again.bytes);
	rh_text_free(&text);
	rh_text_free(&again);
	rh_config_free(&back);
	rh_config_free(config);
}

static void test_print_loads_back_the_same(void **state)
{
	(void)state;
	struct rh_config c;
	static const char *const yamls[] = {
	        "",
	        "lora_r: 3\nlora_alpha: 0.1\nlora_target_modules: [q_proj, 'a b', \"x,y\", 'true', '1']\nforward_cuts: [1, "
	        "2]\nbackward_cuts: []\n",
	        "use_peft: true\nlora_target_modules: '.*\\.(q|v)_proj'\nmax_ram: 1.5GiB\nmax_vram: 7B\nlearning_rate: "
	        "0.1234567890123456789\n",
	        "adapter_name_or_path: adapter\nlora_target_modules: all-linear\nresume_from_checkpoint: true\n",
	        "prompt: \"a\\nb\\t\\\"\\\\ \\u0085\\u2028\\U0001F600\\uFEFF\\x07 \\x7f'\"\neos_token: 'null'\nchat_template: '#x: y'\n",
	        "bf16: true\nseed: 9223372036854775807\ndata_seed: 1\nmax_grad_norm: 0\nadam_epsilon: 1e-30\nweight_decay: 1e3\n",
	        "lr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr: 1e-6}\nweight_decay: 0.1\ndecay_embeddings: "
	        "false\npacking: yes\npacking_strategy: wrapped\n",
	        "eval_split: 0.25\neval_strategy: epoch\neval_steps: 0.5\nsave_steps: 1000000000000\nsave_total_limit: 2\nmax_steps: 7\n",
	        "data_columns: {prompt: 'a b', completion: \"x=y\"}\nmax_samples: 5\nallow: [overlap, duplicates]\ndata_weights: [0.5]\n",
	        "rope_scaling: {rope_type: longrope, factor: 4.0, short_factor: [1.0, 1.5], truncate: false}\n",
	        "completion_only_loss: false\nassistant_only_loss: true\npacking: yes\npacking_strategy: bfd_split\nround_micro_batches: "
	        "3\n",
	};
	for (size_t i = 0; i < sizeof yamls / sizeof yamls[0]; i++) {
		check_ok(load(yamls[i], NULL, &c));
		round_trip("train", &c);
	}
}

static void test_help_lists_a_verbs_keys(void **state)
{
	(void)state;
	struct rh_text text = {0};
	check_ok(rh_config_help("generate", "a, b", &text));
	assert_non_null(strstr(text.bytes, "max_new_tokens"));
	assert_null(strstr(text.bytes, "learning_rate"));
	rh_text_free(&text);
	check_ok(rh_config_help("plan", "a, b", &text));
	static const char *const flags[] = {"--hardware NAME", "--gpus N", "--gantt FILE.svg", "--compare", "--json"};
	for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
		assert_non_null(strstr(text.bytes, flags[i]));
	rh_text_free(&text);
	check_ok(rh_config_help("doctor", "a, b", &text));
	assert_non_null(strstr(text.bytes, "\n  nvme_dirs "));
	assert_null(strstr(text.bytes, "model_name_or_path"));
	assert_null(strstr(text.bytes, "max_vram"));
	rh_text_free(&text);
	check_ok(rh_config_help("train", "a, b", &text));
	assert_non_null(strstr(text.bytes, "  learning_rate                   peak learning rate; a number from 0 to 1000 [2e-5]\n"));
	assert_non_null(strstr(text.bytes, "takes\n                                  paci): a, b [roundpipe]\n"));
	const char *keys = strstr(text.bytes, "\nModel and files\n");
	for (size_t length; keys && *keys; keys += length + (keys[length] == '\n')) { /* broken into lines */
		length = strcspn(keys, "\n");
		assert_true(length <= 100);
	}
	rh_text_free(&text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_print_loads_back_the_same),
	        cmocka_unit_test(test_help_lists_a_verbs_keys),
	};
	return cmocka_run_group_tests(tests, place_make, place_remove);
}
