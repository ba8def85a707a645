/* What other trainers call their keys: Hugging Face's own, Axolotl, LLaMA-Factory, torchtune and Unsloth. Which key of ours a name stands
 * for, or why there is none. */
#include "config/config_internal.h"

#include <string.h>

#define NOT_BUILT "it is not built yet; remove it"
#define REWARDS   "training on rewards (ppo, grpo, rm) is not built yet; remove it"
#define ALWAYS    "it is always so here; remove it"
#define LOGS      "a run writes metrics.jsonl, and what report_to names (tensorboard, csv), and reports nowhere else; remove it"
#define VERBS_SAY "the verb says it: train, eval or generate; remove it"
#define LORA      "true, LoRA (qlora: with load_in_4bit: true), or leave both out for full fine-tuning"
#define REREADS   "each run reads its rows anew and keeps nothing of them; remove it"
#define KERNELS   "which kernels run is no choice; remove it"
#define ATTENTION "there is one attention, memory-saving and exact; remove it"

#define SAMPLES "prompts that are answered at each evaluation"

/* The first entry that fits counts. */
const struct config_elsewhere config_elsewhere[] = {
        {"warmup_ratio", "warmup_steps", NULL, ELSEWHERE_ACCEPTED},

        {"base_model", "model_name_or_path", NULL, ELSEWHERE_SAME},
        {"model", "model_name_or_path", NULL, ELSEWHERE_ACCEPTED},
        {"model_name", "model_name_or_path", NULL, ELSEWHERE_SAME},
        {"model_path", "model_name_or_path", NULL, ELSEWHERE_SAME},
        {"model_type", NULL, "config.json says it; remove it", ELSEWHERE_OTHER},
        {"adapter", "use_peft", LORA, ELSEWHERE_OTHER},
        {"finetuning_type", "use_peft", LORA, ELSEWHERE_OTHER},
        {"full_finetuning", NULL, "all weights are trained where no lora_ key is given; remove it", ELSEWHERE_OTHER},
        {"stage", NULL,
         "loss_type says it: dpo is sigmoid, kto kto, and without it train is supervised fine-tuning (sft; of rows of text, pt); rm, ppo "
         "and grpo are not built yet; remove it",
         ELSEWHERE_OTHER},
        {"rl", "loss_type", "dpo is sigmoid; ipo, kto, orpo and simpo have their names here; grpo and gdpo are not built yet",
         ELSEWHERE_OTHER},
        {"rl_beta orpo_alpha pref_beta dpo_beta", "beta", NULL, ELSEWHERE_SAME},
        {"pref_loss", "loss_type", "sigmoid, hinge, ipo, orpo, simpo (with cpo_alpha: 0); kto_pair is not built yet", ELSEWHERE_OTHER},
        {"pref_ftx rpo_alpha", "loss_weights", "such as [1, 0.2] with loss_type: [sigmoid, sft], the second is its value", ELSEWHERE_OTHER},
        {"pref_bco_weight", "loss_weights", "such as [1, 0.2] with loss_type: [sigmoid, bco_pair], the second is its value",
         ELSEWHERE_OTHER},
        {"kto_chosen_weight kto_desirable_weight", "desirable_weight", NULL, ELSEWHERE_SAME},
        {"kto_rejected_weight kto_undesirable_weight", "undesirable_weight", NULL, ELSEWHERE_SAME},
        {"dpo_label_smoothing", "label_smoothing", "for loss_type: robust (that is what it means there, too)", ELSEWHERE_OTHER},
        {"dpo_loss_type", "loss_type", NULL, ELSEWHERE_SAME},
        {"dpo_loss_weights", "loss_weights", NULL, ELSEWHERE_SAME},
        {"dpo_norm_loss", "loss_type", "sigmoid_norm", ELSEWHERE_OTHER},
        {"dpo_use_weighting use_weighting", NULL, "to weigh pairs by the policy's probabilities (WPO) is not built yet; remove it",
         ELSEWHERE_OTHER},
        {"sync_ref_model ref_model_mixup_alpha ref_model_sync_steps", NULL,
         "a reference that follows the model (TR-DPO) is not built yet; remove it", ELSEWHERE_OTHER},
        {"ld_alpha", NULL, "to weigh an answer's tokens by their place (LD-DPO) is not built yet; remove it", ELSEWHERE_OTHER},
        {"f_divergence_type f_alpha_divergence_coef", NULL, "other divergences than the reverse one are not built yet; remove it",
         ELSEWHERE_OTHER},
        {"discopop_tau", NULL, "the loss discopop is not built yet; remove it", ELSEWHERE_OTHER},
        {"ref_model*", NULL, "the reference is the model as it stands before step 1; remove it", ELSEWHERE_OTHER},
        {"precompute_ref_log_probs precompute_ref_batch_size", NULL,
         "the reference's log-probabilities always are computed before step 1; "
         "remove it",
         ELSEWHERE_OTHER},
        {"disable_dropout", NULL, "with loss_type dropout is always off; remove it", ELSEWHERE_OTHER},
        {"reference_free", "loss_type", "simpo and orpo have no reference", ELSEWHERE_OTHER},
        {"max_prompt_length max_completion_length max_prompt_len", "max_length", "of a prompt with its answer, whose end is cut",
         ELSEWHERE_OTHER},
        {"dpo_use_liger_kernel dpo_padding_free dpo_use_logits_to_keep dpo_generate_during_eval", NULL, ALWAYS, ELSEWHERE_OTHER},
        {"trl", NULL, REWARDS, ELSEWHERE_OTHER},
        {"num_generations num_generations_eval num_iterations steps_per_generation generation_batch_size generation_kwargs epsilon "
         "epsilon_high delta importance_sampling_level scale_rewards mask_truncated_completions multi_objective_aggregation "
         "off_policy_mask_threshold use_bias_correction_kl num_completions_to_print log_completions log_completions_* log_unique_prompts "
         "log_multimodal top_entropy_quantile entropy_* use_adaptive_entropy sapo_* vespo_* cast_lm_head_to_fp32 "
         "ds3_gather_for_generation cache_implementation use_transformers_* transformers_continuous_batching_config "
         "max_tool_calling_iterations normalize_advantages missing_eos_penalty use_vllm max_staleness max_inflight_tasks token_budget "
         "queue_maxsize weight_sync_* heartbeat_stale_after_s request_timeout fork_threshold_tokens nemo_gym_* hatchery async_prefetch",
         NULL, REWARDS, ELSEWHERE_OTHER},
        {"teacher_* uld_* use_uld_loss use_extended_uld use_teacher_server lmbda seq_kd loss_top_k loss_add_tail add_tail_bucket "
         "reverse_kl_top_1_mode distillation_* kd_* iw_opd_* generate_from_teacher num_loss_tokens_to_skip",
         NULL, "to learn from another model's answers is not built yet; rows of its answers can be trained on; remove it", ELSEWHERE_OTHER},
        {"alpha", "lora_alpha", "of an adapter (alpha of TRL's CPO, the loss AlphaPO, is not built yet)", ELSEWHERE_OTHER},
        {"tpo_*", NULL, "the loss TPO is not built yet; remove it", ELSEWHERE_OTHER},
        {"is_encoder_decoder", NULL, "config.json says it; remove it", ELSEWHERE_OTHER},
        {"padding_value label_pad_token_id", NULL, "nothing is padded; remove it", ELSEWHERE_OTHER},
        {"ppo_* grpo_* reward_*", NULL, REWARDS, ELSEWHERE_OTHER},
        {"lora_model_dir", "adapter_name_or_path", NULL, ELSEWHERE_SAME},
        {"peft_model_id", "adapter_name_or_path", NULL, ELSEWHERE_SAME},
        {"tokenizer_*", NULL, "the tokenizer is the model's own; remove it", ELSEWHERE_OTHER},
        {"datasets", "train_file", "a path, or a list of paths", ELSEWHERE_OTHER},
        {"dataset", "train_file", "a path, or a list of paths", ELSEWHERE_OTHER},
        {"dataset_name", "train_file", "a path, or a list of paths; nothing is downloaded", ELSEWHERE_OTHER},
        {"dataset_path", "train_file", "a path, or a list of paths", ELSEWHERE_SAME},
        {"data_path", "train_file", "a path, or a list of paths", ELSEWHERE_SAME},
        {"dataset_dir", "dataset_info", "the path of dataset_info.json, in which train_file then is a name", ELSEWHERE_OTHER},
        {"test_datasets", "validation_file", "a path, or a list of paths", ELSEWHERE_OTHER},
        {"eval_dataset", "validation_file", "a path, or a list of paths", ELSEWHERE_SAME},
        {"eval_dataset_path", "validation_file", "a path, or a list of paths", ELSEWHERE_SAME},
        {"dataset_prepared_path", NULL, REREADS, ELSEWHERE_OTHER},
        {"overwrite_cache", NULL, REREADS, ELSEWHERE_OTHER},
        {"interleave_probs", "data_weights", "how often each file's rows are in an epoch", ELSEWHERE_OTHER},
        {"mix_strategy", NULL, "files follow one another and rows are shuffled; data_weights says how often each is taken; remove it",
         ELSEWHERE_OTHER},
        {"val_set_size", "eval_split", "a share of the rows", ELSEWHERE_SAME},
        {"val_size", "eval_split", "a share of the rows", ELSEWHERE_SAME},
        {"overwrite_output_dir", NULL,
         "results are never overwritten: remove it, and choose another output_dir, or go on with resume_from_checkpoint: true",
         ELSEWHERE_OTHER},
        {"do_train", NULL, VERBS_SAY, ELSEWHERE_OTHER},
        {"do_eval", NULL, VERBS_SAY, ELSEWHERE_OTHER},
        {"do_predict", NULL, VERBS_SAY, ELSEWHERE_OTHER},

        {"template", "chat_template", NULL, ELSEWHERE_OTHER},
        {"chat_template_jinja", "chat_template", "a built-in name, or the path of a file that holds the Jinja text", ELSEWHERE_SAME},
        {"sequence_len", "max_length", NULL, ELSEWHERE_SAME},
        {"max_seq_length", "max_length", NULL, ELSEWHERE_SAME},
        {"max_seq_len", "max_length", NULL, ELSEWHERE_SAME},
        {"model_max_length", "max_length", NULL, ELSEWHERE_SAME},
        {"cutoff_len", "max_length", NULL, ELSEWHERE_SAME},
        {"block_size", "max_length", NULL, ELSEWHERE_OTHER},
        {"sample_packing", "packing", NULL, ELSEWHERE_SAME},
        {"eval_sample_packing", NULL, "rows are not packed in evaluation; remove it", ELSEWHERE_OTHER},
        {"padding_free", NULL, ALWAYS, ELSEWHERE_OTHER},
        {"pad_to_*", NULL, "nothing is padded; remove it", ELSEWHERE_OTHER},
        {"padding_side", NULL, "nothing is padded; remove it", ELSEWHERE_OTHER},
        {"pad_token", NULL, "nothing is padded; remove it", ELSEWHERE_OTHER},
        {"bos_token", NULL, "the tokenizer is the model's own; remove it", ELSEWHERE_OTHER},
        {"special_tokens", NULL, "the tokenizer is the model's own (eos_token names another end of sequence); remove it", ELSEWHERE_OTHER},
        {"train_on_inputs", NULL,
         "its opposite is assistant_only_loss (for messages) or completion_only_loss (for prompt and completion): true trains answers "
         "alone",
         ELSEWHERE_OTHER},
        {"train_on_responses_only", "assistant_only_loss", "true (for messages; for prompt and completion: completion_only_loss)",
         ELSEWHERE_OTHER},
        {"random_state", "seed", NULL, ELSEWHERE_SAME},
        {"remove_unused_columns", NULL, "what a row holds beside its text is ignored; remove it", ELSEWHERE_OTHER},
        {"dataset_num_proc", NULL, "rows are tokenized by this one process; remove it", ELSEWHERE_OTHER},
        {"preprocessing_num_workers", NULL, "rows are tokenized by this one process; remove it", ELSEWHERE_OTHER},
        {"group_by_length", NULL, "nothing is padded, so nothing is won by it; remove it", ELSEWHERE_OTHER},

        {"micro_batch_size", "per_device_train_batch_size", NULL, ELSEWHERE_SAME},
        {"batch_size", "per_device_train_batch_size", NULL, ELSEWHERE_SAME},
        {"train_batch_size", "per_device_train_batch_size", NULL, ELSEWHERE_SAME},
        {"eval_batch_size", "per_device_eval_batch_size", NULL, ELSEWHERE_SAME},
        {"gradient_accumulation", "gradient_accumulation_steps", NULL, ELSEWHERE_SAME},
        {"grad_accum", "gradient_accumulation_steps", NULL, ELSEWHERE_SAME},
        {"accumulate_grad_batches", "gradient_accumulation_steps", NULL, ELSEWHERE_SAME},
        {"auto_find_batch_size", NULL, NOT_BUILT, ELSEWHERE_OTHER},
        {"num_epochs", "num_train_epochs", NULL, ELSEWHERE_SAME},
        {"epochs", "num_train_epochs", NULL, ELSEWHERE_SAME},
        {"optimizer", "optim", NULL, ELSEWHERE_OTHER},
        {"lr", "learning_rate", NULL, ELSEWHERE_SAME},
        {"lr_scheduler", "lr_scheduler_type", NULL, ELSEWHERE_OTHER},
        {"scheduler", "lr_scheduler_type", NULL, ELSEWHERE_OTHER},
        {"warmup", "warmup_steps", NULL, ELSEWHERE_OTHER},
        {"clip_grad_norm", "max_grad_norm", NULL, ELSEWHERE_SAME},
        {"gradient_clipping", "max_grad_norm", NULL, ELSEWHERE_SAME},
        {"moe_aux_loss_coef", "router_aux_loss_coef", NULL, ELSEWHERE_SAME},
        {"label_smoothing_factor", NULL, NOT_BUILT, ELSEWHERE_OTHER},
        {"average_tokens_across_devices calculate_per_token_loss", NULL, ALWAYS, ELSEWHERE_OTHER},
        {"full_determinism", NULL, ALWAYS, ELSEWHERE_OTHER},

        {"lora_rank", "lora_r", NULL, ELSEWHERE_SAME},
        {"rank", "lora_r", NULL, ELSEWHERE_SAME},
        {"lora_target", "lora_target_modules", "a list of names, or all-linear for all", ELSEWHERE_OTHER},
        {"target_modules", "lora_target_modules", NULL, ELSEWHERE_SAME},
        {"target_parameters", "lora_target_parameters", NULL, ELSEWHERE_ACCEPTED},
        {"lora_target_linear", "lora_target_modules", "all-linear", ELSEWHERE_OTHER},
        {"peft_use_rslora", "use_rslora", NULL, ELSEWHERE_SAME},
        {"peft_use_dora", "use_dora", NULL, ELSEWHERE_SAME},
        {"merge_lora", NULL, "the verb merge does it; remove it", ELSEWHERE_OTHER},
        {"lora_bias", NULL, "biases are never trained by an adapter here; remove it", ELSEWHERE_OTHER},
        {"bias", NULL, "biases are never trained by an adapter here; remove it", ELSEWHERE_OTHER},
        {"lora_fan_in_fan_out", NULL, "config.json says it; remove it", ELSEWHERE_OTHER},
        {"lora_mlp_kernel", NULL, KERNELS, ELSEWHERE_OTHER},
        {"lora_qkv_kernel", NULL, KERNELS, ELSEWHERE_OTHER},
        {"lora_o_kernel", NULL, KERNELS, ELSEWHERE_OTHER},
        {"modules_to_save", "lora_modules_to_save", NULL, ELSEWHERE_ACCEPTED},
        {"use_bnb_nested_quant", "bnb_4bit_use_double_quant", NULL, ELSEWHERE_ACCEPTED},
        {"double_quantization", "bnb_4bit_use_double_quant", NULL, ELSEWHERE_OTHER},
        {"quantization*", "quantize", "nf4 (4 bits) or int8 (8 bits)", ELSEWHERE_OTHER},

        {"evaluation_strategy", "eval_strategy", NULL, ELSEWHERE_SAME},
        {"logging_strategy", "logging_steps", NULL, ELSEWHERE_OTHER},
        {"logging_dir", "output_dir", "metrics.jsonl lies in it", ELSEWHERE_OTHER},
        {"saves_per_epoch", "save_steps", "a number of steps, or a share of all", ELSEWHERE_OTHER},
        {"evals_per_epoch", "eval_steps", "a number of steps, or a share of all", ELSEWHERE_OTHER},
        {"save_safetensors", NULL, ALWAYS, ELSEWHERE_OTHER},
        {"auto_resume_from_checkpoints", "resume_from_checkpoint", "true", ELSEWHERE_OTHER},
        {"run_name", NULL, LOGS, ELSEWHERE_OTHER},
        {"wandb_*", NULL, LOGS, ELSEWHERE_OTHER},
        {"use_wandb", NULL, LOGS, ELSEWHERE_OTHER},
        {"mlflow_*", NULL, LOGS, ELSEWHERE_OTHER},
        {"comet_*", NULL, LOGS, ELSEWHERE_OTHER},
        {"project", NULL, LOGS, ELSEWHERE_OTHER},
        {"plot_loss", NULL, LOGS, ELSEWHERE_OTHER},
        {"eval_table_size", NULL, LOGS, ELSEWHERE_OTHER},
        {"strict", NULL, "an unknown key is always an error here; remove it", ELSEWHERE_OTHER},
        {"debug", NULL, "there is no such mode (verbose: true tells more); remove it", ELSEWHERE_OTHER},
        {"log_level", NULL, "there is one; remove it", ELSEWHERE_OTHER},
        {"disable_tqdm", NULL, "a bar is drawn on terminals only; remove it", ELSEWHERE_OTHER},
        {"hub_*", NULL, "nothing is uploaded; remove it", ELSEWHERE_OTHER},
        {"push_to_hub", NULL, "nothing is uploaded; remove it", ELSEWHERE_OTHER},

        {"torch_dtype", "dtype", NULL, ELSEWHERE_OTHER},
        {"precision", "dtype", NULL, ELSEWHERE_OTHER},
        {"use_cpu", "device", "cpu", ELSEWHERE_OTHER},
        {"gpu_memory_limit", "max_vram", NULL, ELSEWHERE_SAME},
        {"use_gradient_checkpointing", NULL, ALWAYS, ELSEWHERE_OTHER},
        {"no_cuda", "device", "cpu", ELSEWHERE_OTHER},
        {"device_map", "device", "cuda takes all GPUs", ELSEWHERE_OTHER},
        {"num_gpus", "device", "cuda takes all GPUs, cuda:0,1 two of them", ELSEWHERE_OTHER},
        {"local_rank", NULL, "one process runs all devices; remove it", ELSEWHERE_OTHER},
        {"torch_compile* fullgraph unsloth_force_compile", NULL, "there is nothing to compile; remove it", ELSEWHERE_OTHER},
        {"trust_remote_code", NULL, "no code of a model's is run; remove it", ELSEWHERE_OTHER},
        {"flash_attn*", NULL, ATTENTION, ELSEWHERE_OTHER},
        {"flash_attention*", NULL, ATTENTION, ELSEWHERE_OTHER},
        {"xformers_attention", NULL, ATTENTION, ELSEWHERE_OTHER},
        {"sdp_attention", NULL, ATTENTION, ELSEWHERE_OTHER},
        {"use_cache", NULL, "generate always keeps keys and values, train never; remove it", ELSEWHERE_OTHER},
        {"max_tokens", "max_new_tokens", NULL, ELSEWHERE_SAME},
        {"do_sample", "temperature", "above 0 samples", ELSEWHERE_OTHER},

        /* data */
        {"skip_prepare_dataset is_preprocess tokenized_path dataset_keep_in_memory data_shared_file_system num_dataset_shards_to_save "
         "push_dataset_to_hub dataset_shard_num dataset_shard_idx",
         NULL, REREADS, ELSEWHERE_OTHER},
        {"streaming dataset_streaming buffer_size streaming_multipack_buffer_size preprocess_iterable preprocessing_batch_size "
         "dataset_processes dataset_kwargs download_mode cache_dir",
         NULL, "rows are read from files here, all at once, and kept in memory; remove it", ELSEWHERE_OTHER},
        {"pretraining_dataset data_files path", "train_file", "a path, or a list of paths", ELSEWHERE_OTHER},
        {"data_dir media_dir task_dir", "train_file", "a folder, or files in it", ELSEWHERE_OTHER},
        {"name dataset_config dataset_train_split split", "train_file", "the files of that part", ELSEWHERE_OTHER},
        {"dataset_test_split", "validation_file", "the files of that part", ELSEWHERE_OTHER},
        {"test_split_size", "eval_split", "a share of the rows", ELSEWHERE_SAME},
        {"columns", "data_columns", "the names that a row's parts have in the files", ELSEWHERE_OTHER},
        {"length_column_name", NULL, "nothing is padded, so nothing is won by it; remove it", ELSEWHERE_OTHER},
        {"shuffle_dataset shuffle_merged_datasets shuffle_before_merging_datasets disable_shuffling curriculum_sampling",
         "train_sampling_strategy", "random or sequential", ELSEWHERE_OTHER},
        {"dataset_exact_deduplication", NULL, "inspect and train find the rows that were there before (duplicates); remove it",
         ELSEWHERE_OTHER},
        {"min_sample_len excess_length_strategy truncation_mode", NULL,
         "longer rows are cut at max_length, or with packing_strategy: bfd_split split; remove it", ELSEWHERE_OTHER},
        {"eval_sequence_len", "max_length", "of training rows and of rows to evaluate alike", ELSEWHERE_OTHER},
        {"train_on_prompt", "completion_only_loss", "false trains prompts too", ELSEWHERE_OTHER},
        {"mask_history", NULL, "a message with weight: 0 is not trained; remove it, and mark such messages in the rows", ELSEWHERE_OTHER},
        {"role_boundaries roles_to_train train_on_eos train_on_eot eot_tokens", NULL,
         "answers are trained through the token that ends the turn (assistant_only_loss: true), as the template writes them; remove it",
         ELSEWHERE_OTHER},
        {"default_system default_system_message", NULL, "system messages stand in the rows; remove it, and add them there",
         ELSEWHERE_OTHER},
        {"tool_format", NULL, "the chat template says it; remove it", ELSEWHERE_OTHER},
        {"chat_template_path", "chat_template", "a built-in name, or a file of Jinja text", ELSEWHERE_SAME},
        {"chat_template_kwargs enable_thinking preserve_thinking", NULL, "a row may hold chat_template_kwargs of its own; remove it",
         ELSEWHERE_OTHER},
        {"instruction_part response_part", NULL, "the chat template says where answers stand; remove it", ELSEWHERE_OTHER},
        {"mapping", NULL, "ShareGPT's names are known; remove it (data_columns names other columns)", ELSEWHERE_OTHER},
        {"map_eos_token", "eos_token", "the token that ends an answer", ELSEWHERE_OTHER},
        {"add_tokens tokens added_tokens_overrides new_special_tokens add_special_tokens new_special_tokens_config init_special_tokens "
         "resize_vocab resize_token_embeddings_to_32x shrink_embeddings resize_model_vocab mean_resizing_embeddings fix_untrained_tokens "
         "embeddings_skip_upcast",
         NULL, "to change a vocabulary is not built yet (eos_token takes another token that is there); remove it", ELSEWHERE_OTHER},
        {"skip_special_tokens split_special_tokens use_fast_tokenizer fix_tokenizer", NULL,
         "the tokenizer is the model's own, as tokenizer.json says; remove it", ELSEWHERE_OTHER},
        {"neat_packing use_packed_sequences", "packing", "packed rows see only themselves anyway", ELSEWHERE_SAME},
        {"eval_packing", NULL, "rows are not packed in evaluation; remove it", ELSEWHERE_OTHER},
        {"sample_packing_* multipack_real_batches batch_flattening pretrain_multipack_* pretraining_sample_concatenation "
         "max_packed_sequence_len",
         NULL, "packing: true packs rows up to max_length, packing_strategy says how; remove it", ELSEWHERE_OTHER},
        {"image_* video_* audio_* processor_* use_audio_in_video crop_to_patches freeze_vision_tower freeze_multi_modal_projector "
         "freeze_language_model freeze_mm_modules finetune_vision_layers finetune_audio_layers text_only",
         NULL, "images, videos and sounds beside text are not built yet (a ViT alone is: task: image_classification); remove it",
         ELSEWHERE_OTHER},
        {"whisper_* auto_model", NULL, "models of sound are not built yet; remove it", ELSEWHERE_OTHER},

        /* batches, steps, optimisation */
        {"optim_target_modules use_galore galore_* use_apollo apollo_* use_badam badam_* qgalore_* q_galore_* "
         "gamma_proj update_proj_gap proj_quant* stochastic_round",
         NULL, "such optimizers are not built yet; optim: adafactor keeps the least state, and state lies in host memory anyway; remove it",
         ELSEWHERE_OTHER},
        {"use_adam_mini use_muon dion_* use_dion adam_beta3 adam_epsilon2", NULL,
         "that optimizer is not built yet; optim takes adamw_torch, lion_32bit, sgd or adafactor; remove it", ELSEWHERE_OTHER},
        {"lr_groups embedding_lr embedding_lr_scale embedding_learning_rate loraplus_lr_embedding", NULL,
         "learning rates that differ by module are not built yet; learning_rate is all modules'; remove it", ELSEWHERE_OTHER},
        {"cosine_min_lr_ratio", "lr_scheduler_kwargs", "{min_lr_rate: SHARE}, with lr_scheduler_type: cosine_with_min_lr", ELSEWHERE_OTHER},
        {"cosine_constant_lr_ratio lr_quadratic_warmup lr_div_factor jagged_restart_*", NULL,
         "such a course of the learning rate is not built yet; lr_scheduler_type: cosine_with_min_lr comes nearest; remove it",
         ELSEWHERE_OTHER},
        {"noisy_embedding_alpha", "neftune_noise_alpha", NULL, ELSEWHERE_SAME},
        {"use_dft_loss use_asft_loss asft_alpha use_eaft use_eaft_loss eaft_* chunked_cross_entropy "
         "chunked_cross_entropy_num_chunks ignore_pad_token_for_loss compute_accuracy",
         NULL, "the loss is the cross entropy of trained tokens, in pieces where memory is small; others are not built yet; remove it",
         ELSEWHERE_OTHER},
        {"accelerator_config parallelism_config deepcompile ddp context_parallel_size sequence_parallel_degree tensor_parallel_size "
         "dp_shard_size dp_replicate_size heads_k_stride ring_attn_func world_size local_world_size master_addr master_port "
         "use_hyper_parallel hyper_parallel_* use_mca use_megatron_bridge megatron_bridge_args "
         "nproc_per_node num_processes nnodes expert_parallel_* expert_model_parallel_size tensor_model_parallel_size "
         "pipeline_model_parallel_size virtual_pipeline_model_parallel_size sequence_parallel overlap_grad_reduce overlap_param_gather "
         "use_distributed_optimizer account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split",
         NULL,
         "one process runs all devices, and stages of layers pass over them (device: cuda takes all GPUs; several machines: mode); remove "
         "it",
         ELSEWHERE_OTHER},
        {"ray_* use_ray resources_per_worker", NULL, "nothing runs under Ray (several machines: mode); remove it", ELSEWHERE_OTHER},
        {"use_kt kt_*", NULL, "experts are computed where the plan says; remove it", ELSEWHERE_OTHER},

        /* adapters, and what is trained */
        {"r", "lora_r", NULL, ELSEWHERE_SAME},
        {"additional_target", "lora_modules_to_save", "such as [embed_tokens, lm_head]", ELSEWHERE_OTHER},
        {"lora_on_cpu peft_autocast_adapter_dtype lora_task_type temporary_location max_lora_rank lora_embedding_kernel", NULL,
         "an adapter is kept in fp32 in host memory; remove it", ELSEWHERE_OTHER},
        {"create_new_adapter merge_method", NULL, "the verb merge joins an adapter to its model, which a new run then trains; remove it",
         ELSEWHERE_OTHER},
        {"adapter_folder", "adapter_name_or_path", NULL, ELSEWHERE_SAME},
        {"peft", "lora_r", "its keys are lora_r, lora_alpha, lora_target_modules and so on", ELSEWHERE_OTHER},
        {"peft_init_lora_weights", "init_lora_weights", "true, gaussian or false", ELSEWHERE_OTHER},
        {"loftq_config pissa_* eva_config corda_config lora_ga_config", "init_lora_weights",
         "true, gaussian or false; other beginnings are not built yet", ELSEWHERE_OTHER},
        {"peft_layers_to_transform", "layers_to_transform", NULL, ELSEWHERE_SAME},
        {"lora_alpha_pattern", "alpha_pattern", NULL, ELSEWHERE_SAME},
        {"lora_rank_pattern", "rank_pattern", NULL, ELSEWHERE_SAME},
        {"peft_layers_pattern layers_pattern peft_layer_replication peft_trainable_token_indices layer_replication "
         "trainable_token_indices alora_invocation_tokens arrow_config kasa_config monteclora_config velora_config runtime_config "
         "use_bdlora "
         "use_qalora qalora_group_size",
         NULL,
         "it is not built yet; lora_target_modules, which may be a regular expression on whole names, such as '.*[.][0-7][.].*_proj', "
         "comes nearest; remove it",
         ELSEWHERE_OTHER},
        {"peft_ensure_weight_tying ensure_weight_tying", NULL, "a tied table is trained as one; remove it", ELSEWHERE_OTHER},
        {"finetune_attention_modules finetune_mlp_modules finetune_language_layers", "lora_target_modules",
         "a list such as [q_proj, k_proj, v_proj, o_proj]", ELSEWHERE_OTHER},
        {"freeze_trainable_layers freeze_trainable_modules freeze_extra_modules unfrozen_parameters use_llama_pro lisa_* "
         "spectrum_* finetune_last_n_layers",
         NULL,
         "to train some layers alone is not built yet; an adapter comes nearest (lora_target_modules may be a regular expression); remove "
         "it",
         ELSEWHERE_OTHER},
        {"grokfast_* dense_mixer mora mora_type use_mora diffusion relora relora_* mixture_of_depths module_dropout oft_* use_pose pose_* "
         "shift_attn s2_attention scaling_softmax scaling_softmax_*",
         NULL, NOT_BUILT, ELSEWHERE_OTHER},
        {"train_from_scratch reinit_weights", "config_name", "a config.json from which a model begins at random", ELSEWHERE_OTHER},
        {"qat qat_scheme qlora_sharded_model_loading quantize_moe_experts bnb_config_kwargs "
         "nonexpert_quantization gemma4_fp8_nonexpert gemma4_nf4_nonexpert nvfp4_merge_* llmcompressor model_quantization_config "
         "model_quantization_config_kwargs gptq "
         "use_onebitllms",
         NULL, "load_in_4bit and quantize say how a frozen base is packed; remove it", ELSEWHERE_OTHER},
        {"load_in_16bit", "dtype", "bfloat16", ELSEWHERE_OTHER},
        {"load_in_fp8", "fp8", "true", ELSEWHERE_OTHER},

        /* the model and its files */
        {"base_model_config cls_model_config overrides_of_model_config overrides_of_model_kwargs model_config model_kwargs "
         "model_init_kwargs megatron_pretrained_checkpoint export_hf_on_finish extra_config model_patcher auto_config model_types "
         "for_inference fan_in_fan_out inference_mode peft_type peft_version auto_mapping megatron_config megatron_core pooling_mode",
         NULL, "config.json says it (rope_scaling may take the place of its own); remove it", ELSEWHERE_OTHER},
        {"model_revision revision revision_of_model hf_hub_token ms_hub_token om_hub_token hf_use_auth_token token use_exact_model_name",
         NULL, "nothing is downloaded here (hf download fetches a model); remove it", ELSEWHERE_OTHER},
        {"is_falcon_derived_model is_llama_derived_model is_mistral_derived_model is_qwen_derived_model type_of_model "
         "llama4_linearized_experts process_reward_model capabilities env_capabilities axolotl_config_path",
         NULL, "config.json says it; remove it", ELSEWHERE_OTHER},
        {"plugins trainer_cls", NULL,
         "plugins are not built; losses and attention that save memory are built in, other optimizers are not; remove it", ELSEWHERE_OTHER},
        {"low_cpu_mem_usage offload_folder layer_offloading activation_offloading offload_embedding max_memory maximum_memory_usage", NULL,
         "weights, gradients and optimizer state lie in host memory or on NVMe anyway (max_vram, max_ram, spill); remove it",
         ELSEWHERE_OTHER},
        {"gc_steps gc_collect_steps torch_empty_cache_steps skip_memory_metrics experimental_skip_move_to_device", NULL,
         "memory is planned before the run; remove it", ELSEWHERE_OTHER},
        {"disable_gradient_checkpointing use_unsloth_gc use_reentrant_gc selective_checkpointing dynamic_checkpoint recompute_*", NULL,
         "what is recomputed follows from the memory there is; remove it", ELSEWHERE_OTHER},

        /* precision and kernels */
        {"bfloat16", "dtype", "bfloat16", ELSEWHERE_OTHER},
        {"float16 float32 compute_dtype mixed_precision", "dtype", "float32 or bfloat16", ELSEWHERE_OTHER},
        {"pure_bf16 bf16_full_eval fp16_full_eval fp32_norms fp32_norm_classes float32_mixed_precision upcast_layernorm "
         "upcast_lmhead_output infer_dtype float8_kv_cache",
         NULL, "dtype says the type of weights and products; sums, norms and masters are fp32; remove it", ELSEWHERE_OTHER},
        {"fp8_*", NULL, "fp8: true takes 8-bit operands; there is nothing else to choose; remove it", ELSEWHERE_OTHER},
        {"attention_backend eager_attention flex_attention flex_attn_* flash_optimum sage_attention sdpa_varlen block_diag_attn "
         "fused_attn_kernel large_head_attention gemma4_hybrid_attn_impl",
         NULL, ATTENTION, ELSEWHERE_OTHER},
        {"enable_liger_kernel use_kernels use_v1_kernels liger_kernel_config experts_implementation tiled_mlp tiled_mlp_* "
         "unsloth_tiled_mlp use_unsloth torchdistx_path use_kv_cache fast_inference liger_* cut_cross_entropy use_scattermoe use_sonicmoe "
         "use_dsv4_kernels dsv4_* use_glm_dsa_kernels moe_bnb_fast moe_dequant_chunk_size moe_grouped_backend moe_grouped_gemm "
         "moe_token_dispatcher_type apply_rope_fusion bias_activation_fusion masked_softmax_fusion cross_entropy_loss_fusion "
         "unsloth_vllm_standby supports_sdpa",
         NULL, KERNELS, ELSEWHERE_OTHER},

        /* logging, evaluation, saving */
        {"use_swanlab swanlab_* use_trackio trackio_* use_comet use_mlflow hf_mlflow_* use_otel_metrics otel_* logging_nan_inf_filter "
         "log_on_each_node log_level_replica include_num_input_tokens_seen include_tkps include_tokens_per_second "
         "include_effective_tokens_per_second print_param_status disable_log_stats total_num_tokens total_supervised_tokens",
         NULL, LOGS, ELSEWHERE_OTHER},
        {"use_tensorboard", "report_to", "tensorboard", ELSEWHERE_OTHER},
        {"early_stopping_steps", "early_stopping_patience", "evaluations in a row that are no better", ELSEWHERE_OTHER},
        {"loss_watchdog_threshold loss_watchdog_patience", "max_bad_steps",
         "train warns of losses that are far off, and skips steps whose gradient is not finite", ELSEWHERE_OTHER},
        {"eval_delay eval_on_start eval_on_each_dataset eval_accumulation_steps eval_use_gather_object eval_do_concat_batches "
         "batch_eval_metrics include_for_metrics label_names prediction_loss_only",
         NULL, "evaluation is over all held-out rows (eval_strategy, eval_steps); remove it", ELSEWHERE_OTHER},
        {"do_causal_lm_eval eval_causal_lm_metrics do_bench_eval bench_split bench_dataset n_shot lang lm_eval_*", NULL,
         "eval_loss, token accuracy and accuracy are measured; benchmarks are not built yet; remove it", ELSEWHERE_OTHER},
        {"generate_samples num_generation_samples generation_* eval_max_new_tokens eval_num_beams generate_during_eval", "sample_prompts",
         SAMPLES, ELSEWHERE_OTHER},
        {"save_first_step save_on_each_node enable_jit_checkpoint", "save_steps",
         "a checkpoint each so many steps, and one when a file SAVE appears in output_dir", ELSEWHERE_OTHER},
        {"save_dir", "output_dir", NULL, ELSEWHERE_SAME},
        {"restore_callback_states_from_checkpoint ignore_data_skip", NULL, "a run goes on exactly where it stopped; remove it",
         ELSEWHERE_OTHER},
        {"profile_modules profiler_* enable_torch_profiler", "trace_step", "a step that is recorded, as trace.json and trace.svg",
         ELSEWHERE_OTHER},
        {"export_dir", "output_dir", "of the verb merge", ELSEWHERE_OTHER},
        {"export_size export_device export_legacy_format export_quantization_* export_hub_model_id save_method ", NULL,
         "the verbs merge and export write models (outtype: q8_0 or q4_k_m in a GGUF file); remove it", ELSEWHERE_OTHER},

        /* other verbs of theirs */
        {"infer_backend vllm vllm_* sglang_* gpu_memory_utilization return_logits gradio_*", NULL,
         "generate and chat answer here; remove it", ELSEWHERE_OTHER},
        {"config config_file", NULL, "the file stands right after the verb, without a key (roundhouse train run.yaml); remove it",
         ELSEWHERE_OTHER},
        {"task_type", "task", "causal_lm (the default where config.json says nothing else), masked_lm or sequence_classification",
         ELSEWHERE_OTHER},
        {"num_beams length_penalty", "temperature", "beams are not built; temperature, top_k, top_p and min_p sample", ELSEWHERE_OTHER},

        /* llama.cpp */
        {"n_predict predict", "max_new_tokens", NULL, ELSEWHERE_OTHER},
        {"repeat_penalty", "repetition_penalty", NULL, ELSEWHERE_OTHER},
        {"system_prompt", "system", NULL, ELSEWHERE_OTHER},
        {"output", "outfile", "of the verbs merge and export (a run writes to output_dir)", ELSEWHERE_OTHER},
        {"stop stop_sequences", "eos_token", "the token at which an answer ends", ELSEWHERE_OTHER},
        {"ctx_size n_ctx", NULL, "a conversation may be as long as the model's context; remove it", ELSEWHERE_OTHER},
        {"n_gpu_layers gpu_layers", NULL, "what a GPU holds follows from max_vram; remove it (device: cpu takes none)", ELSEWHERE_OTHER},
        {"threads threads_batch", NULL, "all cores that the process may use compute; remove it", ELSEWHERE_OTHER},

        {"center_rewards_coefficient ebft ignore_bias_buffers", NULL, REWARDS, ELSEWHERE_OTHER},
};
const size_t config_elsewheres = sizeof config_elsewhere / sizeof config_elsewhere[0];

size_t config_elsewhere_next(const char **names)
{
	*names += strspn(*names, " ");
	return strcspn(*names, " ");
}

const struct config_elsewhere *config_elsewhere_find(const char *name)
{
	for (size_t i = 0; i < config_elsewheres; i++) {
		const char *rest = config_elsewhere[i].names;
		for (size_t length; (length = config_elsewhere_next(&rest)); rest += length) {
			int is_prefix = rest[length - 1] == '*';
			size_t compared = length - (size_t)is_prefix;
			if (!strncmp(name, rest, compared) && (is_prefix || !name[compared]))
				return &config_elsewhere[i];
		}
	}
	return NULL;
}

const char *config_alias_key(const char *name)
{
	const struct config_elsewhere *found = config_elsewhere_find(name);
	return found && found->how == ELSEWHERE_ACCEPTED ? found->key : name;
}
