/* The kind of optimizer and the layout of its state: keys `optim` and `state_layout`. */
#ifndef RH_CONFIG_OPTIM_H
#define RH_CONFIG_OPTIM_H

enum rh_optim { RH_OPTIM_ADAMW, RH_OPTIM_LION, RH_OPTIM_SGD, RH_OPTIM_ADAFACTOR, RH_OPTIMS };

/* Bytes of each: offload/store.h. fp32 weights have one layout only, and every name but SPLIT8 means it. */
enum rh_state_layout {
	RH_LAYOUT_SPLIT,  /* the master's upper half is the upload form */
	RH_LAYOUT_PLAIN,  /* an fp32 master beside the upload form */
	RH_LAYOUT_SPLIT8, /* split, and AdamW's moments in 8 bits, block-wise */
	RH_LAYOUTS
};

#endif
