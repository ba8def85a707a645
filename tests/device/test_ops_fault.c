/* rh_op_fault takes what op.h documents and nothing else; rh_op_cost on cases worked out by hand. */
#include "op_case.h"

static void give_parameters(struct rh_op *op)
{
	if (op->kind == RH_OP_RMSNORM || op->kind == RH_OP_RMSNORM_BACKWARD)
		op->rmsnorm.groups = 2;
	if (op->kind == RH_OP_ROPE)
		op->rope.heads = 2;
	if (op->kind == RH_OP_ATTENTION || op->kind == RH_OP_ATTENTION_BACKWARD) {
		op->attention.heads = 4;
		op->attention.kv_heads = 2;
		op->attention.documents = 2;
		op->attention.longest = 4;
	}
	if (op->kind == RH_OP_ATTENTION_BACKWARD) /* with sums these are the queries' */
		op->operand[RH_ATTENTION_BACKWARD_DK].rows = op->operand[RH_ATTENTION_BACKWARD_DV].rows = 6;
	if (op->kind == RH_OP_QK_ROPE || op->kind == RH_OP_QK_ROPE_BACKWARD) {
		op->qk_rope.heads = 2;
		op->qk_rope.kv_heads = 1;
	}
	int is_lora = op->kind >= RH_OP_LORA_LOW && op->kind <= RH_OP_LORA_B_GRADIENT;
	for (int m = 0; (is_lora || op->kind == RH_OP_DORA_NORM || op->kind == RH_OP_DORA_GRADIENT) && m < RH_LORA_MODULES; m++)
		op->lora.out[m] = 3 + m;
	if (op->kind == RH_OP_DEQUANTISE)
		op->dequantise.run = 64, op->dequantise.tall = 1;
	if (op->kind == RH_OP_HEAD_LOSS) {
		op->head_loss.temperature = 2;
		op->head_loss.top = 4;
	}
	if (op->kind == RH_OP_PREFERENCE) {
		op->preference.answers = 2;
		op->preference.beta = 0.1F;
		op->preference.weight[RH_PREFERENCE_SIGMOID] = 1;
	}
	if (op->kind == RH_OP_LATENT || op->kind == RH_OP_LATENT_BACKWARD)
		op->latent.heads = op->latent.value = 2;
	if (op->kind == RH_OP_CONV || op->kind == RH_OP_CONV_BACKWARD)
		op->conv.documents = 1;
	if (op->kind == RH_OP_DELTA || op->kind == RH_OP_DELTA_BACKWARD) {
		op->delta.heads = 2;
		op->delta.key_heads = 1;
		op->delta.documents = 1;
	}
	if (op->kind == RH_OP_QUANTISE)
		op->quantise.limit = 448, op->quantise.known = 4;
	if (op->kind == RH_OP_SCALED_GEMM)
		op->scaled_gemm.trans_b = 1;
}

struct lengths {
	enum rh_dtype dtype;
	int64_t rows, cols;
};

/* Of PREFERENCE, ATTENTION_BACKWARD, QUANTISE, QUANTISE_ROWS, ADD, ROUTER_BACKWARD and DoRA's; and of fused ops: 2 query heads and 1 key
 * head; adapters of 3, 4 and 5 columns. */
static struct lengths fused_lengths(enum rh_op_kind kind, enum rh_dtype act, int operand)
{
	const struct lengths shape[RH_OP_KINDS][RH_OP_OPERANDS] = {
	        [RH_OP_PREFERENCE] = {{RH_F32, 6, 1}, {RH_I32, 2, 4}, {RH_F32, 2, 1}, {RH_F32, 2, 2}, {RH_F32, 6, 1}, {act, 6, 8}},
	        [RH_OP_ATTENTION_BACKWARD] = {{act, 6, 16},
	                                      {act, 7, 8},
	                                      {act, 7, 8},
	                                      {RH_I32, 3, 1},
	                                      {RH_I32, 3, 1},
	                                      {act, 6, 16},
	                                      {RH_F32, 6, 4},
	                                      {act, 6, 16},
	                                      {RH_F32, 6, 4},
	                                      {act, 6, 16},
	                                      {act, 7, 8},
	                                      {act, 7, 8},
	                                      {act, 1, 4},
	                                      {RH_F32, 1, 4},
	                                      {RH_F32, 10, 16}, /* as rh_attention_space_rows says */
	                                      {RH_F32, 7, 8},
	                                      {RH_F32, 7, 8}},
	        [RH_OP_QUANTISE] =
	                {{act, 6, 8}, {RH_F32, 1, RH_QUANTISE_PARTS}, {RH_F32, 1, 1}, {RH_E4M3, 6, 8}, {RH_E5M2, 8, 16}, {RH_F32, 6, 2}},
	        [RH_OP_QUANTISE_ROWS] = {{act, 6, 8}, {RH_F32, 6, 1}, {RH_E4M3, 6, 8}},
	        [RH_OP_ADD] = {{act, 6, 8}, {act, 6, 8}, {act, 6, 8}, {act, 1, 1}},
	        [RH_OP_LATENT] = {{act, 6, 10}, {act, 6, 2}, {act, 6, 10}, {act, 6, 4}}, /* 3 and 2 of key, 2 of value */
	        [RH_OP_LATENT_BACKWARD] = {{act, 6, 10}, {act, 6, 4}, {act, 6, 10}, {act, 6, 2}},
	        [RH_OP_ROUTER_BACKWARD] = {{act, 6, 5},
	                                   {RH_I32, 6, 3},
	                                   {RH_F32, 6, 3},
	                                   {RH_I32, 6, 3},
	                                   {RH_F32, 18, 1},
	                                   {RH_F32, 6, 5},
	                                   {RH_F32, 1, 5},
	                                   {act, 6, 5},
	                                   {act, 1, 5},
	                                   {RH_F32, 6, 5}},
	        [RH_OP_ADD_RMSNORM] = {{act, 6, 8}, {act, 6, 8}, {act, 1, 8}, {act, 6, 8}, {act, 6, 8}, {RH_F32, 6, 1}, {RH_F32, 6, 1}},
	        [RH_OP_QK_ROPE] = {{act, 6, 12}, {act, 1, 4}, {act, 1, 4}, {RH_F32, 6, 4}, {act, 6, 12}, {RH_F32, 6, 3}},
	        [RH_OP_QK_ROPE_BACKWARD] = {{act, 6, 12},
	                                    {act, 1, 4},
	                                    {act, 1, 4},
	                                    {RH_F32, 6, 3},
	                                    {RH_F32, 6, 4},
	                                    {act, 6, 12},
	                                    {act, 6, 12},
	                                    {RH_F32, 1, 4},
	                                    {RH_F32, 1, 4},
	                                    {RH_F32, 6, 3}},
	        [RH_OP_DORA_NORM] = {{act, 12, 8},
	                             {act, 2, 8},
	                             {act, 1, 8},
	                             {act, 5, 8},
	                             {act, 3, 2},
	                             {act, 4, 1},
	                             {act, 5, 5},
	                             {act, 1, 3},
	                             {act, 1, 4},
	                             {act, 1, 5},
	                             {RH_F32, 12, 2}},
	        [RH_OP_DORA_SCALE] = {{act, 6, 12}, {RH_F32, 12, 2}, {act, 1, 12}, {act, 6, 12}, {act, 6, 12}},
	        [RH_OP_DORA_GRADIENT] = {{act, 6, 12}, {act, 6, 12}, {RH_F32, 12, 2}, {RH_F32, 1, 3}, {RH_F32, 1, 4}, {RH_F32, 1, 5}},
	        [RH_OP_LORA_LOW] = {{act, 6, 8}, {act, 6, 2}, {act, 6, 1}, {act, 6, 5}, {act, 2, 8}, {act, 1, 8}, {act, 5, 8}, {act, 6, 8}},
	        [RH_OP_LORA_PART] =
	                {{act, 6, 12}, {act, 6, 2}, {act, 6, 1}, {act, 6, 5}, {act, 3, 2}, {act, 4, 1}, {act, 5, 5}, {act, 6, 12}},
	        [RH_OP_LORA_LOW_GRADIENT] =
	                {{act, 6, 12}, {act, 6, 2}, {act, 6, 1}, {act, 6, 5}, {act, 3, 2}, {act, 4, 1}, {act, 5, 5}, {act, 6, 12}},
	        [RH_OP_LORA_INPUT_GRADIENT] =
	                {{act, 6, 8}, {act, 6, 2}, {act, 6, 1}, {act, 6, 5}, {act, 2, 8}, {act, 1, 8}, {act, 5, 8}, {act, 6, 8}},
	        [RH_OP_LORA_A_GRADIENT] =
	                {{act, 6, 8}, {act, 6, 2}, {act, 6, 1}, {act, 6, 5}, {RH_F32, 2, 8}, {RH_F32, 1, 8}, {RH_F32, 5, 8}, {act, 6, 8}},
	        [RH_OP_LORA_B_GRADIENT] =
	                {{act, 6, 12}, {act, 6, 2}, {act, 6, 1}, {act, 6, 5}, {RH_F32, 3, 2}, {RH_F32, 4, 1}, {RH_F32, 5, 5}, {act, 6, 12}},
	};
	return shape[kind][operand];
}

/* Of linear attention: 2 value heads and 1 key head, K = 4 and V = 3. */
static struct lengths delta_lengths(enum rh_op_kind kind, enum rh_dtype act, int operand)
{
	const struct lengths shape[RH_OP_KINDS][RH_OP_OPERANDS] = {
	        [RH_OP_CONV] = {{act, 6, 8}, {act, 8, 4}, {RH_I32, 2, 1}, {act, 6, 8}, {act, 3, 8}, {act, 3, 8}},
	        [RH_OP_CONV_BACKWARD] = {{act, 6, 8},
	                                 {act, 8, 4},
	                                 {RH_I32, 2, 1},
	                                 {act, 6, 8},
	                                 {act, 6, 8},
	                                 {RH_F32, 8, 4},
	                                 {act, 3, 8},
	                                 {RH_F32, 3, 8},
	                                 {RH_F32, 3, 8}},
	        [RH_OP_DELTA] = {{act, 6, 4},
	                         {act, 6, 4},
	                         {act, 6, 6},
	                         {act, 6, 2},
	                         {act, 6, 2},
	                         {act, 1, 2},
	                         {act, 1, 2},
	                         {RH_I32, 2, 1},
	                         {act, 6, 6},
	                         {RH_F32, 8, 3},
	                         {RH_F32, 8, 3}},
	        [RH_OP_DELTA_BACKWARD] =
	                {{act, 6, 4},    {act, 6, 4},    {act, 6, 6},    {act, 6, 2},    {act, 6, 2},     {act, 1, 2},
	                 {act, 1, 2},    {RH_I32, 2, 1}, {act, 6, 6},    {act, 6, 4},    {act, 6, 4},     {act, 6, 6},
	                 {act, 6, 2},    {act, 6, 2},    {RH_F32, 1, 2}, {RH_F32, 1, 2}, {RH_F32, 1, 52}, /* as rh_delta_space says */
	                 {RH_F32, 8, 3}, {RH_F32, 8, 3}, {RH_F32, 8, 3}},
	        [RH_OP_GATE] = {{act, 6, 8}, {act, 6, 8}, {act, 1, 8}, {act, 6, 8}, {RH_F32, 6, 1}},
	        [RH_OP_GATE_BACKWARD] = {{act, 6, 8},
	                                 {act, 6, 8},
	                                 {act, 1, 8},
	                                 {RH_F32, 6, 1},
	                                 {act, 6, 8},
	                                 {act, 6, 8},
	                                 {act, 6, 8},
	                                 {RH_F32, 1, 8},
	                                 {act, 6, 8}},
	};
	return shape[kind][operand];
}

static struct lengths lengths_of_adapter(enum rh_dtype act, int operand)
{
	int is_up = operand == RH_HEAD_LOSS_UP || operand == RH_HEAD_LOSS_DUP;
	return (struct lengths){operand == RH_HEAD_LOSS_DUP ? RH_F32 : act, is_up ? 9 : 6, 3};
}

static int is_apart(enum rh_op_kind kind, int operand)
{
	return (kind == RH_OP_HEAD_LOSS && operand >= RH_HEAD_LOSS_LOW) || rh_op_is_fused(kind) || kind == RH_OP_PREFERENCE ||
	       kind == RH_OP_QUANTISE_ROWS || kind == RH_OP_QUANTISE || kind == RH_OP_ATTENTION_BACKWARD || kind == RH_OP_ADD ||
	       kind == RH_OP_ROUTER_BACKWARD || kind == RH_OP_LATENT || kind == RH_OP_LATENT_BACKWARD ||
	       (kind >= RH_OP_CONV && kind <= RH_OP_DORA_GRADIENT);
}

static struct lengths lengths_apart(enum rh_op_kind kind, enum rh_dtype act, int operand)
{
	int is_delta = kind >= RH_OP_CONV && kind <= RH_OP_GATE_BACKWARD;
	if (kind == RH_OP_HEAD_LOSS)
		return lengths_of_adapter(act, operand);
	return is_delta ? delta_lengths(kind, act, operand) : fused_lengths(kind, act, operand);
}

/* A right op of each kind: T = 6 rows, every optional operand there. */
static struct op_case right(enum rh_op_kind kind, enum rh_dtype act)
{
	uint64_t seed = 1;
	struct op_case c = {.seed = &seed, .op.kind = kind};
	const struct lengths shape[RH_OP_KINDS][RH_OP_OPERANDS] = {
	        [RH_OP_FILL] = {{act, 6, 8}},
	        [RH_OP_CAST] = {{act, 6, 8}, {RH_F32, 6, 8}},
	        [RH_OP_GEMM] = {{act, 6, 8}, {act, 8, 5}, {RH_F32, 6, 5}, {act, 1, 5}, {RH_F32, 6, 5}},
	        [RH_OP_COLUMN_SUM] = {{act, 6, 8}, {RH_F32, 1, 8}},
	        [RH_OP_RMSNORM] = {{act, 6, 8}, {act, 1, 4}, {act, 6, 8}, {RH_F32, 6, 2}, {RH_F32, 6, 2}},
	        [RH_OP_RMSNORM_BACKWARD] = {{act, 6, 8},
	                                    {act, 1, 4},
	                                    {RH_F32, 6, 2},
	                                    {act, 6, 8},
	                                    {act, 6, 8},
	                                    {act, 6, 8},
	                                    {RH_F32, 1, 4},
	                                    {act, 6, 8},
	                                    {RH_F32, 6, 2},
	                                    {RH_F32, 6, 2}},
	        [RH_OP_ROPE_TABLE] = {{RH_I32, 6, 1}, {RH_F32, 6, 4}},
	        [RH_OP_ROPE] = {{act, 6, 8}, {RH_F32, 6, 4}, {RH_F32, 6, 2}},
	        [RH_OP_ATTENTION] = {{act, 6, 16},
	                             {act, 7, 8},
	                             {act, 7, 8},
	                             {RH_I32, 3, 1},
	                             {RH_I32, 3, 1},
	                             {act, 6, 16},
	                             {RH_F32, 6, 4},
	                             {act, 1, 4},
	                             {RH_F32, 6, 4}},
	        [RH_OP_GLU] = {{act, 6, 8}, {act, 6, 4}, {RH_F32, 6, 1}},
	        [RH_OP_GLU_BACKWARD] = {{act, 6, 8}, {act, 6, 4}, {act, 6, 8}, {act, 6, 4}, {RH_F32, 6, 1}, {RH_F32, 6, 1}, {RH_F32, 6, 1}},
	        [RH_OP_EMBEDDING] = {{RH_I32, 6, 1}, {act, 9, 8}, {act, 6, 8}},
	        [RH_OP_EMBEDDING_BACKWARD] = {{RH_I32, 6, 1}, {act, 6, 8}, {RH_F32, 9, 8}},
	        [RH_OP_GATHER_ROWS] = {{act, 9, 8}, {RH_I32, 6, 1}, {act, 6, 8}},
	        [RH_OP_SCATTER_ROWS] = {{act, 6, 8}, {RH_I32, 6, 1}, {act, 9, 8}},
	        [RH_OP_DROPOUT] = {{act, 6, 8}, {act, 6, 8}, {act, 6, 8}},
	        [RH_OP_HEAD_LOSS] = {{act, 6, 8},
	                             {act, 9, 8},
	                             {RH_I32, 6, 1},
	                             {RH_F32, 2, 9},
	                             {RH_F32, 6, 1},
	                             {RH_I32, 6, 1},
	                             {act, 6, 8},
	                             {RH_F32, 9, 8},
	                             {act, 1, 9},
	                             {RH_F32, 1, 9},
	                             {RH_F32, 6, 8},
	                             {RH_F32, 6, 2},
	                             {RH_F32, 6, 8}},
	        [RH_OP_ROUTER] = {{act, 6, 3}, {RH_I32, 6, 3}, {RH_F32, 6, 3}, {RH_F32, 6, 6}, {act, 1, 3}, {act, 3, 3}},
	        [RH_OP_PERMUTE] = {{RH_I32, 6, 2}, {act, 6, 8}, {RH_I32, 5, 1}, {RH_I32, 6, 2}, {act, 12, 8}},
	        [RH_OP_UNPERMUTE] = {{act, 12, 8}, {RH_I32, 6, 2}, {RH_F32, 6, 2}, {act, 6, 8}, {act, 6, 8}},
	        [RH_OP_UNPERMUTE_BACKWARD] = {{act, 6, 8}, {RH_I32, 6, 2}, {RH_F32, 6, 2}, {act, 12, 8}},
	        [RH_OP_GROUPED_GEMM] = {{act, 12, 8}, {act, 32, 5}, {RH_I32, 5, 1}, {RH_F32, 12, 5}, {act, 4, 5}, {RH_F32, 12, 5}},
	        [RH_OP_GROUPED_GEMM_GRADIENT] = {{act, 12, 6}, {act, 12, 5}, {RH_I32, 5, 1}, {RH_F32, 24, 5}},
	        [RH_OP_GROUPED_COLUMN_SUM] = {{act, 12, 8}, {RH_I32, 5, 1}, {RH_F32, 4, 8}},
	        [RH_OP_DEQUANTISE] = {{RH_NF4, 6, 128}, {RH_U8, 6, 2}, {RH_F32, 1, 1}, {RH_F32, 1, 257}, {RH_I32, 6, 1}, {act, 6, 128}},
	        [RH_OP_ACTIVATION] = {{act, 6, 8}, {act, 6, 8}},
	        [RH_OP_ACTIVATION_BACKWARD] = {{act, 6, 8}, {act, 6, 8}, {act, 6, 8}, {act, 6, 8}},
	        [RH_OP_LAYERNORM] = {{act, 6, 8}, {act, 1, 8}, {act, 1, 8}, {act, 6, 8}, {RH_F32, 6, 2}},
	        [RH_OP_LAYERNORM_BACKWARD] = {{act, 6, 8},
	                                      {act, 1, 8},
	                                      {act, 1, 8},
	                                      {RH_F32, 6, 2},
	                                      {act, 6, 8},
	                                      {act, 6, 8},
	                                      {act, 6, 8},
	                                      {RH_F32, 1, 8},
	                                      {RH_F32, 1, 8},
	                                      {act, 6, 8}},
	        [RH_OP_TRANSPOSE] = {{RH_E4M3, 16, 32}, {RH_E4M3, 32, 16}},
	        [RH_OP_SCALED_GEMM] = {{RH_E4M3, 6, 32},
	                               {RH_E5M2, 16, 32},
	                               {RH_F32, 1, 1},
	                               {RH_F32, 1, 1},
	                               {RH_F32, 6, 16},
	                               {RH_BF16, 1, 16},
	                               {RH_F32, 6, 16}},
	};
	for (int i = 0; i < rh_op_info(kind)->operands; i++) {
		struct lengths of = is_apart(kind, i) ? lengths_apart(kind, act, i) : shape[kind][i];
		case_operand(&c, i, of.dtype, of.rows, of.cols, 0, FILL_NONE);
	}
	give_parameters(&c.op);
	if (kind == RH_OP_ROUTER) /* goes with sigmoids, which have no load */
		c.op.operand[RH_ROUTER_BIAS] = (struct rh_view){0};
	c.seed = NULL; /* it ends here */
	return c;
}

/* A module of adapters has its low and its matrix, or neither; a teacher has its weights; sums of dk come with those of dv; a norm's
 * weights with its statistics, an amax with its optional output. */
static int partner(enum rh_op_kind kind, int operand)
{
	if (kind == RH_OP_GATE && (operand == RH_GATE_W || operand == RH_GATE_RSTD))
		return RH_GATE_W + RH_GATE_RSTD - operand;
	if (kind == RH_OP_GATE_BACKWARD && (operand == RH_GATE_BACKWARD_W || operand == RH_GATE_BACKWARD_RSTD))
		return RH_GATE_BACKWARD_W + RH_GATE_BACKWARD_RSTD - operand;
	if (kind == RH_OP_HEAD_LOSS && (operand == RH_HEAD_LOSS_TEACHER || operand == RH_HEAD_LOSS_MIX))
		return RH_HEAD_LOSS_TEACHER + RH_HEAD_LOSS_MIX - operand;
	if (kind == RH_OP_HEAD_LOSS && (operand == RH_HEAD_LOSS_LOW || operand == RH_HEAD_LOSS_UP))
		return RH_HEAD_LOSS_LOW + RH_HEAD_LOSS_UP - operand;
	if (kind == RH_OP_ROUTER_BACKWARD && operand >= RH_ROUTER_BACKWARD_SCALE)
		return RH_ROUTER_BACKWARD_SCALE + RH_ROUTER_BACKWARD_DSCALE - operand;
	if (kind == RH_OP_ATTENTION_BACKWARD && operand >= RH_ATTENTION_BACKWARD_DK_SUM)
		return RH_ATTENTION_BACKWARD_DK_SUM + RH_ATTENTION_BACKWARD_DV_SUM - operand;
	if (kind == RH_OP_RMSNORM_BACKWARD && (operand == RH_RMSNORM_BACKWARD_Y || operand == RH_RMSNORM_BACKWARD_Y_AMAX))
		return RH_RMSNORM_BACKWARD_Y + RH_RMSNORM_BACKWARD_Y_AMAX - operand;
	if (kind == RH_OP_GLU_BACKWARD && (operand == RH_GLU_BACKWARD_A || operand == RH_GLU_BACKWARD_A_AMAX))
		return RH_GLU_BACKWARD_A + RH_GLU_BACKWARD_A_AMAX - operand;
	if (kind < RH_OP_LORA_LOW || kind > RH_OP_LORA_B_GRADIENT || operand < RH_LORA_LOWS || operand >= RH_LORA_SPACE)
		return operand;
	return operand < RH_LORA_MATRICES ? operand + RH_LORA_MODULES : operand - RH_LORA_MODULES;
}

static void test_fault_is_null_for_right_ops(void **state)
{
	(void)state;
	for (int kind = 0; kind < RH_OP_KINDS; kind++) {
		for (int bf16 = 0; bf16 < 2; bf16++) {
			struct op_case c = right((enum rh_op_kind)kind, bf16 ? RH_BF16 : RH_F32);
			const char *fault = rh_op_fault(&c.op);
			if (fault)
				print_error("%s: %s\n", rh_op_info((enum rh_op_kind)kind)->name, fault);
			assert_null(fault);
			for (int i = 0; i < rh_op_info((enum rh_op_kind)kind)->operands; i++) {
				if (!rh_op_info((enum rh_op_kind)kind)->operand[i].optional || kind == RH_OP_DEQUANTISE ||
				    kind == RH_OP_DORA_NORM)
					continue; /* there the type of x and scale, or all of a module, says what is absent */
				struct rh_op without = c.op;
				without.operand[i] = without.operand[partner((enum rh_op_kind)kind, i)] = (struct rh_view){0};
				if (kind == RH_OP_HEAD_LOSS && i != partner(RH_OP_HEAD_LOSS, i) && i >= RH_HEAD_LOSS_LOW)
					without.operand[RH_HEAD_LOSS_DLOW] = without.operand[RH_HEAD_LOSS_DUP] = (struct rh_view){0};
				if (kind == RH_OP_QUANTISE && i == RH_QUANTISE_AMAX)
					without.quantise.known = 0;
				if (kind == RH_OP_ATTENTION_BACKWARD && i >= RH_ATTENTION_BACKWARD_DK_SUM)
					without.operand[RH_ATTENTION_BACKWARD_DK].rows = without.operand[RH_ATTENTION_BACKWARD_DV].rows = 7;
				assert_null(rh_op_fault(&without));
			}
			case_free(&c);
		}
	}
}

static void expect_fault(struct rh_op op, int operand, struct rh_view view, const char *change)
{
	op.operand[operand] = view;
	if (!rh_op_fault(&op)) {
		print_error("%s: %s of %s was not noticed\n", rh_op_info(op.kind)->name, change,
		            rh_op_info(op.kind)->operand[operand].name);
		fail();
	}
}

/* Each operand in turn: absent, another dtype, a row or column less, a stride too small, on top of another operand. Rows are free
 * where nothing else has them. */
static void test_fault_is_found_in_every_operand(void **state)
{
	(void)state;
	for (int k = 0; k < RH_OP_KINDS; k++) {
		enum rh_op_kind kind = (enum rh_op_kind)k;
		const struct rh_op_info *info = rh_op_info(kind);
		struct op_case c = right(kind, RH_F32);
		for (int i = 0; i < info->operands; i++) {
			struct rh_view view = c.op.operand[i];
			if (!view.data)
				continue;
			int free_rows = kind == RH_OP_FILL || (kind == RH_OP_COLUMN_SUM && i == RH_COLUMN_SUM_X) ||
			                (kind == RH_OP_EMBEDDING && i == RH_EMBEDDING_TABLE) ||
			                (kind == RH_OP_EMBEDDING_BACKWARD && i == RH_EMBEDDING_BACKWARD_DTABLE) ||
			                (kind == RH_OP_GATHER_ROWS && i == RH_GATHER_ROWS_X) || kind == RH_OP_SCATTER_ROWS ||
			                (kind == RH_OP_HEAD_LOSS && i == RH_HEAD_LOSS_LOGITS) ||
			                (kind == RH_OP_PERMUTE && i == RH_PERMUTE_START) ||
			                (kind == RH_OP_GROUPED_COLUMN_SUM && i == RH_GROUPED_COLUMN_SUM_X);
			if (!info->operand[i].optional)
				expect_fault(c.op, i, (struct rh_view){0}, "absence");
			expect_fault(c.op, i, (struct rh_view){view.data, RH_F16, view.rows, view.cols, view.stride}, "dtype");
			expect_fault(c.op, i, (struct rh_view){view.data, view.dtype, -1, view.cols, view.stride}, "negative rows");
			expect_fault(c.op, i, (struct rh_view){view.data, view.dtype, view.rows, view.cols, view.cols - 1}, "stride");
			if (!free_rows)
				expect_fault(c.op, i, (struct rh_view){view.data, view.dtype, view.rows - 1, view.cols, view.stride},
				             "rows");
			if (kind != RH_OP_FILL && !(kind == RH_OP_PREFERENCE && i == RH_PREFERENCE_OP_DH) &&
			    !(kind == RH_OP_QUANTISE && i == RH_QUANTISE_AMAX))
				expect_fault(c.op, i, (struct rh_view){view.data, view.dtype, view.rows, view.cols - 1, view.stride},
				             "columns");
			for (int j = 0; j < info->operands; j++) { /* a byte into the other, which no exception allows */
				if (i == j || info->operand[i].access == RH_ACCESS_IN || !view.rows || !c.op.operand[j].data)
					continue;
				struct rh_view over = view;
				over.data = (char *)c.op.operand[j].data + 1;
				expect_fault(c.op, i, over, "overlap");
			}
		}
		struct rh_op more = c.op;
		if (info->operands < RH_OP_OPERANDS) {
			static float any;
			more.operand[info->operands] = info->operands ? c.op.operand[0] : rh_view_of(&any, RH_F32, 1, 1);
			assert_non_null(rh_op_fault(&more));
		}
		case_free(&c);
	}
	struct rh_op none = {.kind = RH_OP_KINDS};
	assert_non_null(rh_op_fault(&none));
}

static void expect_dropout_faults(void)
{
	struct rh_op op;
	struct op_case c = right(RH_OP_DROPOUT, RH_F32);
	op = c.op, op.dropout.p = 1;
	assert_non_null(rh_op_fault(&op));
	op = c.op, op.dropout.p = -0.1f;
	assert_non_null(rh_op_fault(&op));
	op = c.op, op.dropout.noise = -1;
	assert_non_null(rh_op_fault(&op));
	op = c.op, op.dropout.p = 0.1f, op.dropout.noise = 1;
	assert_non_null(rh_op_fault(&op));
	case_free(&c);
}

static void expect_sigmoid_faults(void)
{
	struct op_case c = right(RH_OP_ROUTER, RH_F32);
	float bias[12] = {0}, logits[24] = {0};
	struct rh_op op = c.op;
	op.router.sigmoid = 1;
	assert_non_null(rh_op_fault(&op)); /* it has a load */
	op.operand[RH_ROUTER_LOAD] = (struct rh_view){0};
	op.operand[RH_ROUTER_BIAS] = rh_view_of(bias, RH_F32, 3, 3);
	assert_null(rh_op_fault(&op));
	op.router.sigmoid = 0;
	assert_non_null(rh_op_fault(&op));
	op.router.sigmoid = 1, op.operand[RH_ROUTER_BIAS].cols = 2;
	assert_non_null(rh_op_fault(&op));
	op.operand[RH_ROUTER_BIAS] = op.operand[RH_ROUTER_SCALE] = (struct rh_view){0};
	op.router.groups = op.router.best_groups = 3; /* of one expert each */
	assert_non_null(rh_op_fault(&op));
	op.operand[RH_ROUTER_LOGITS] = rh_view_of(logits, RH_F32, 6, 4);
	op.router.groups = op.router.best_groups = 2;
	assert_null(rh_op_fault(&op));
	op.router.best_groups = 3;
	assert_non_null(rh_op_fault(&op));
	op.router.best_groups = 1; /* 2 experts for 3 */
	assert_non_null(rh_op_fault(&op));
	case_free(&c);
	c = right(RH_OP_ROUTER_BACKWARD, RH_F32);
	op = c.op, op.router.sigmoid = 1;
	assert_non_null(rh_op_fault(&op)); /* it has a count */
	op.operand[RH_ROUTER_BACKWARD_COUNT] = (struct rh_view){0};
	assert_null(rh_op_fault(&op));
	case_free(&c);
}

static void expect_rope_faults(void)
{
	struct op_case c = right(RH_OP_ROPE, RH_F32); /* heads and what is rotated of them are equally long */
	struct rh_op op = c.op;
	op.rope.first = 1;
	assert_non_null(rh_op_fault(&op));
	op.rope.first = -1;
	assert_non_null(rh_op_fault(&op));
	op = c.op, op.rope.adjacent = 1;
	assert_non_null(rh_op_fault(&op)); /* it has an amax */
	op.operand[RH_ROPE_AMAX] = (struct rh_view){0};
	assert_null(rh_op_fault(&op));
	op.rope.apart = 2;
	assert_non_null(rh_op_fault(&op));
	case_free(&c);
	c = right(RH_OP_LATENT, RH_F32);
	op = c.op, op.latent.value = 1;
	assert_non_null(rh_op_fault(&op));
	op = c.op, op.latent.heads = 0;
	assert_non_null(rh_op_fault(&op));
	case_free(&c);
}

static void expect_quantise_faults(void)
{
	struct rh_op op;
	struct op_case c = right(RH_OP_QUANTISE, RH_F32);
	op = c.op, op.quantise.limit = 449;
	assert_non_null(rh_op_fault(&op));
	op = c.op, op.quantise.limit = NAN;
	assert_non_null(rh_op_fault(&op));
	op = c.op, op.operand[RH_QUANTISE_T].stride = 24;
	assert_non_null(rh_op_fault(&op));
	op = c.op, op.quantise.known = 9;
	assert_non_null(rh_op_fault(&op));
	op = c.op, op.quantise.known = 0; /* an amax of nothing */
	assert_non_null(rh_op_fault(&op));
	op = c.op, op.operand[RH_QUANTISE_AMAX] = (struct rh_view){0};
	assert_non_null(rh_op_fault(&op));
	case_free(&c);
	c = right(RH_OP_ROPE, RH_F32);
	op = c.op, op.operand[RH_ROPE_TABLE_IN].cols = 2; /* an amax of heads that are not turned whole */
	assert_non_null(rh_op_fault(&op));
	case_free(&c);
	c = right(RH_OP_GLU_BACKWARD, RH_F32);
	op = c.op, op.operand[RH_GLU_BACKWARD_A] = (struct rh_view){0};
	assert_non_null(rh_op_fault(&op));
	case_free(&c);
	c = right(RH_OP_RMSNORM_BACKWARD, RH_F32);
	op = c.op, op.operand[RH_RMSNORM_BACKWARD_Y] = (struct rh_view){0};
	assert_non_null(rh_op_fault(&op));
	case_free(&c);
}

static void test_fault_is_found_in_parameters(void **state)
{
	(void)state;
	expect_sigmoid_faults();
	expect_rope_faults();
	struct op_case c = right(RH_OP_ATTENTION, RH_F32);
	struct rh_op op = c.op;
	op.attention.kv_heads = 3;
	assert_non_null(rh_op_fault(&op));
	op.attention.kv_heads = 0;
	assert_non_null(rh_op_fault(&op));
	op = c.op, op.attention.heads = 0;
	assert_non_null(rh_op_fault(&op));
	op = c.op, op.attention.documents = 3;
	assert_non_null(rh_op_fault(&op));
	op = c.op, op.attention.window = -1;
	assert_non_null(rh_op_fault(&op));
	op = c.op, op.attention.longest = 7;
	assert_non_null(rh_op_fault(&op));
	case_free(&c);
	c = right(RH_OP_RMSNORM, RH_F32);
	op = c.op, op.rmsnorm.groups = 0;
	assert_non_null(rh_op_fault(&op));
	op = c.op, op.rmsnorm.groups = 3;
	assert_non_null(rh_op_fault(&op));
	case_free(&c);
	c = right(RH_OP_GROUPED_GEMM, RH_F32);
	op = c.op, op.grouped_gemm.trans_b = 1;
	assert_non_null(rh_op_fault(&op));
	case_free(&c);
	c = right(RH_OP_LORA_LOW, RH_F32);
	op = c.op, op.lora.p = 1;
	assert_non_null(rh_op_fault(&op));
	op = c.op, op.lora.p = 0.5f, op.operand[RH_LORA_SPACE] = (struct rh_view){0};
	assert_non_null(rh_op_fault(&op));
	op = c.op, op.lora.out[1] = 0;
	assert_non_null(rh_op_fault(&op));
	op = c.op, op.operand[RH_LORA_LOWS] = (struct rh_view){0};
	assert_non_null(rh_op_fault(&op));
	for (int i = RH_LORA_LOWS; i < RH_LORA_SPACE; i++)
		op.operand[i] = (struct rh_view){0};
	assert_non_null(rh_op_fault(&op));
	case_free(&c);
	c = right(RH_OP_LORA_PART, RH_F32);
	op = c.op, op.lora.out[0] = 4;
	assert_non_null(rh_op_fault(&op));
	case_free(&c);
	c = right(RH_OP_QK_ROPE, RH_F32);
	op = c.op, op.qk_rope.kv_heads = 0;
	assert_non_null(rh_op_fault(&op));
	op = c.op, op.qk_rope.heads = 4;
	assert_non_null(rh_op_fault(&op));
	case_free(&c);
	c = right(RH_OP_ROUTER, RH_F32);
	op = c.op, op.router.softmax = (enum rh_router_softmax)2;
	assert_non_null(rh_op_fault(&op));
	case_free(&c);
	c = right(RH_OP_ACTIVATION, RH_F32);
	op = c.op, op.activation.act = RH_ACT_GPT_OSS;
	assert_non_null(rh_op_fault(&op));
	case_free(&c);
	c = right(RH_OP_GLU, RH_F32);
	op = c.op, op.activation.act = RH_ACT_TANH;
	assert_non_null(rh_op_fault(&op));
	case_free(&c);
	c = right(RH_OP_ATTENTION, RH_F32);
	op = c.op, op.attention.direction = (enum rh_attention_direction)2;
	assert_non_null(rh_op_fault(&op));
	case_free(&c);
	c = right(RH_OP_DEQUANTISE, RH_F32);
	op = c.op, op.dequantise.run = 60;
	assert_non_null(rh_op_fault(&op));
	op = c.op, op.dequantise.tall = 2;
	assert_non_null(rh_op_fault(&op));
	op = c.op, op.operand[RH_DEQUANTISE_MAP] = (struct rh_view){0};
	assert_non_null(rh_op_fault(&op));
	op = c.op, op.operand[RH_DEQUANTISE_SCALE] = (struct rh_view){0};
	assert_non_null(rh_op_fault(&op));
	case_free(&c);
	c = right(RH_OP_SCALED_GEMM, RH_F32);
	op = c.op, op.operand[RH_SCALED_GEMM_A].dtype = RH_E5M2;
	assert_non_null(rh_op_fault(&op));
	op = c.op, op.scaled_gemm.chunk = 64; /* of bf16 operands alone */
	assert_non_null(rh_op_fault(&op));
	op = c.op, op.operand[RH_SCALED_GEMM_B].stride = 40;
	assert_non_null(rh_op_fault(&op));
	case_free(&c);
	expect_dropout_faults();
	expect_quantise_faults();
}

/* Column ranges of one buffer do not overlap though their bytes interleave. */
static void test_fault_lets_column_ranges_of_one_buffer_pass(void **state)
{
	(void)state;
	static float wide[6 * 20];
	struct rh_view all = rh_view_of(wide, RH_F32, 6, 20);
	struct rh_op op = {.kind = RH_OP_CAST};
	op.operand[RH_CAST_X] = rh_view_cols(all, 0, 8);
	op.operand[RH_CAST_Y] = rh_view_cols(all, 8, 8);
	assert_null(rh_op_fault(&op));
	op.operand[RH_CAST_Y] = rh_view_cols(all, 7, 8);
	assert_non_null(rh_op_fault(&op));
	op.operand[RH_CAST_Y] = rh_view_cols(all, 12, 8);
	assert_null(rh_op_fault(&op));
	op.operand[RH_CAST_Y] = op.operand[RH_CAST_X];
	assert_null(rh_op_fault(&op));
}

static struct rh_op_cost cost_of(enum rh_op_kind kind, enum rh_dtype act)
{
	struct op_case c = right(kind, act);
	struct rh_op_cost cost = rh_op_cost(&c.op);
	case_free(&c);
	return cost;
}

static void test_cost_of_hand_computed_cases(void **state)
{
	(void)state;
	/* 6 x 8 times 8 x 5: 240 multiply-adds; c and bias add to 30 elements each; a, b, bias bf16, c and d fp32. */
	struct rh_op_cost gemm = cost_of(RH_OP_GEMM, RH_BF16);
	assert_true(gemm.product_flops == 480 && gemm.other_flops == 60 && gemm.bytes == 2 * (48 + 40 + 5) + 4 * (30 + 30));
	/* y is read and written. */
	struct rh_op_cost sum = cost_of(RH_OP_COLUMN_SUM, RH_BF16);
	assert_true(sum.product_flops == 0 && sum.other_flops == 48 && sum.bytes == 2 * 48 + 2 * 4 * 8);
	/* 6 rows of the table, not 9. */
	assert_true(cost_of(RH_OP_EMBEDDING, RH_F32).bytes == 4 * (6 + 48 + 48));
	assert_true(cost_of(RH_OP_EMBEDDING_BACKWARD, RH_F32).bytes == 4 * (6 + 48 + 2 * 48));
	/* Three products of 6 x 9 x 8; logits are workspace; dw and dbias are read and written; a teacher, its weights and
	 * shares. */
	struct rh_op_cost head = cost_of(RH_OP_HEAD_LOSS, RH_F32);
	assert_true(head.product_flops == 3 * 2 * 6 * 9 * (8 + 3) &&
	            head.bytes == 4 * (48 + 72 + 6 + 6 + 6 + 48 + 2 * 72 + 9 + 2 * 9 + 48 + 12 + 48 + 18 + 27 + 18 + 2 * 27));
	/* 6 queries that see 4 / 2 of their own keys and (7 - 6) / 2 cached ones; 4 heads of 4; scores and outputs. */
	struct rh_op_cost attention = cost_of(RH_OP_ATTENTION, RH_F32);
	assert_true(attention.product_flops == 2 * 2 * 6 * 2.5 * 16);
	assert_true(attention.bytes == 4 * (96 + 56 + 56 + 3 + 3 + 96 + 24 + 4 + 24));
	assert_true(cost_of(RH_OP_ATTENTION_BACKWARD, RH_F32).product_flops == 5 * 2 * 6 * 2.5 * 16);
	struct op_case c = right(RH_OP_ATTENTION, RH_F32);
	c.op.attention.window = 1;
	assert_true(rh_op_cost(&c.op).product_flops == 2 * 2 * 6 * 1 * 16);
	case_free(&c);
}

/* x (6,8), twice: for the scale and for what is made; y, t, the scale. With an amax of 4 columns, (6,2), half as much for the scale. */
static void test_cost_of_quantising(void **state)
{
	(void)state;
	struct op_case c = right(RH_OP_QUANTISE, RH_BF16);
	assert_true(rh_op_cost(&c.op).bytes == 48 + 96 + 48 + 128 + 4 + 48);
	c.op.quantise.known = 8;
	assert_true(rh_op_cost(&c.op).bytes == 96 + 48 + 128 + 4 + 48);
	c.op.quantise.known = 0;
	c.op.operand[RH_QUANTISE_AMAX] = (struct rh_view){0};
	assert_true(rh_op_cost(&c.op).bytes == 2 * 96 + 48 + 128 + 4);
	c.op.operand[RH_QUANTISE_Y] = c.op.operand[RH_QUANTISE_T] = (struct rh_view){0};
	assert_true(rh_op_cost(&c.op).bytes == 96 + 4);
	case_free(&c);
}

static void test_cost_of_mixtures_of_experts(void **state)
{
	(void)state;
	/* 12 rows of 8 times 8 x 5 of an expert each; four experts' matrices and biases are read, c is too. */
	struct rh_op_cost grouped = cost_of(RH_OP_GROUPED_GEMM, RH_BF16);
	assert_true(grouped.product_flops == 2 * 12 * 8 * 5 && grouped.other_flops == 2 * 60);
	assert_true(grouped.bytes == 2 * (96 + 160 + 20) + 4 * (5 + 60 + 60));
	struct rh_op_cost gradient = cost_of(RH_OP_GROUPED_GEMM_GRADIENT, RH_BF16);
	assert_true(gradient.product_flops == 2 * 12 * 6 * 5 && gradient.bytes == 2 * (72 + 60) + 4 * (5 + 2 * 120));
	struct op_case few = right(RH_OP_GROUPED_GEMM, RH_F32); /* two rows: two experts of four at most */
	few.op.operand[RH_GROUPED_GEMM_A].rows = few.op.operand[RH_GROUPED_GEMM_C].rows = few.op.operand[RH_GROUPED_GEMM_D].rows = 2;
	assert_true(rh_op_cost(&few.op).bytes == 4 * (16 + 80 + 5 + 10 + 20 + 10));
	case_free(&few);
	/* x is read and written k times; the sort's lists. */
	assert_true(cost_of(RH_OP_PERMUTE, RH_BF16).bytes == 4 * (12 + 5 + 12) + 2 * (48 + 96));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_fault_is_null_for_right_ops),  cmocka_unit_test(test_fault_is_found_in_every_operand),
	        cmocka_unit_test(test_fault_is_found_in_parameters), cmocka_unit_test(test_fault_lets_column_ranges_of_one_buffer_pass),
	        cmocka_unit_test(test_cost_of_hand_computed_cases),  cmocka_unit_test(test_cost_of_mixtures_of_experts),
	        cmocka_unit_test(test_cost_of_quantising),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
