"""The private names of libraries that the run side uses or replaces: any release may change them.

By the module, or by module:class, that has them. A unit test finds names that are missing here, and
tests/image/scripts/canaries those that an installed release lacks.
"""

from __future__ import annotations

PRIVATE: dict[str, tuple[str, ...]] = {
    "torch": ("_C", "_VF", "_dynamo", "_guards", "_inductor"),
    "torch:Tensor": ("_version",),
    "torch._C": ("_are_functorch_transforms_active", "_autograd", "_disabled_torch_function_impl", "_functorch"),
    "torch._C._autograd": ("_saved_tensors_hooks_is_enabled", "_top_saved_tensors_default_hooks"),
    "torch._VF": ("_unpack_dual",),
    "torch._dynamo.eval_frame:OptimizedModule": ("_orig_mod",),
    "torch.autograd:Variable": ("_execution_engine",),
    "torch.autograd.forward_ad": ("_current_level",),
    "torch.distributed": ("_all_gather_base", "_reduce_scatter_base"),
    "torch.distributed.distributed_c10d": ("_get_default_group",),
    "torch.jit": ("_builtins",),
    "torch.jit._builtins": ("_register_builtin",),
    "torch.nn:Module": (
        *("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks"),
        "_compiled_call_impl",
    ),
    "torch.nn.parallel:DistributedDataParallel": ("_comm_hooks", "_set_params_and_buffers_to_ignore_for_model"),
    "transformers:PreTrainedConfig": ("_attn_implementation",),
    "transformers:PreTrainedModel": ("_keys_to_ignore_on_save", "_loss_function"),
    "transformers:MBart50Tokenizer": ("_switch_to_input_mode", "_switch_to_target_mode"),
    "transformers.tokenization_utils_base:PreTrainedTokenizerBase": ("_in_target_context_manager",),
    "transformers:Trainer": (
        *(
            "_get_eval_sampler",
            "_get_output_dir",
            "_get_train_sampler",
            "_load_best_model",
            "_load_from_checkpoint",
        ),
        *("_load_optimizer_and_scheduler", "_load_rng_state", "_loss_shifts_labels", "_maybe_log_save_evaluate"),
        *("_push_from_checkpoint", "_run_epoch", "_save", "_save_checkpoint", "_save_optimizer_and_scheduler"),
        "_wrap_model",
    ),
    "transformers:Trainer.save_model": ("_internal_call",),
    "transformers.core_model_loading": ("_weight_conversions",),  # which it gives to models
    "transformers.integrations.integration_utils:KubeflowCallback": ("_update_status",),
    "transformers.utils.import_utils": ("_LazyModule",),
    "accelerate:PartialState": ("_shared_state",),
    "evaluate:Metric": ("_compute", "_info"),
}
