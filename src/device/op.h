/* The op list: the few primitives that training needs. Model code emits them; devices run them; device/ops/ defines them in plain C.
 *
 * An op is a value: a kind, operands (views of device memory, or of host memory for the oracle) and parameters. Operands are addressed by
 * the enums below, one per kind; an absent operand has data NULL. "=" overwrites, "+=" adds to what is there. Unless said otherwise an
 * output may not overlap an input, and T is the number of tokens (rows). "act" stands for the compute dtype, F32 or BF16: arithmetic is
 * fp32 inside, rounded once (nearest even) on store. What an op computes does not depend on threads or devices: the order of every sum is
 * a function of the shapes alone (of grouped products: and of the rows that each expert has).
 *
 * Beside an output some ops leave its amax, (rows,n) F32 or absent: of each row the largest magnitudes, as stored, of n parts of it. Their
 * bits are compared, infinity above numbers and NaN above that. QUANTISE makes its scale of them and need not read the output for it.
 *
 * On CUDA every shape works, some on slower kernels. These use tensor cores: ATTENTION and its backward in BF16 with D 32, 64, 96, 128 or
 * 256, and grouped products in BF16, where all their rows begin on 16 bytes. cuBLASLt chooses the kernels of GEMM, of HEAD_LOSS's products
 * and of SCALED_GEMM with 8-bit operands. Ops bound by memory move 16 bytes at a time where rows begin on 16 bytes, else single
 * elements. ATTENTION in F32 with D above 256 wants 194 KB of shared memory a block. */
#ifndef RH_DEVICE_OP_H
#define RH_DEVICE_OP_H

#include "core/form.h"
#include "core/preference.h"
#include "core/view.h"

/* All ops: those that are a kernel on every device, and those that each device runs in a way of its own (products go through libraries
 * and workspace). To add one: a row here and its operands below; what there is to say of it in device/ops/; a kernel in device/cpu/simd/
 * and one in cuda/. */
#define RH_OPS(PLAIN, OWN)                                                                                                                 \
	PLAIN(FILL, fill)                                                                                                                  \
	PLAIN(CAST, cast)                                                                                                                  \
	OWN(GEMM, gemm)                                                                                                                    \
	PLAIN(COLUMN_SUM, column_sum)                                                                                                      \
	PLAIN(RMSNORM, rmsnorm)                                                                                                            \
	PLAIN(RMSNORM_BACKWARD, rmsnorm_backward)                                                                                          \
	PLAIN(ROPE_TABLE, rope_table)                                                                                                      \
	PLAIN(ROPE, rope)                                                                                                                  \
	PLAIN(ATTENTION, attention)                                                                                                        \
	PLAIN(ATTENTION_BACKWARD, attention_backward)                                                                                      \
	PLAIN(GLU, glu)                                                                                                                    \
	PLAIN(GLU_BACKWARD, glu_backward)                                                                                                  \
	PLAIN(EMBEDDING, embedding)                                                                                                        \
	PLAIN(EMBEDDING_BACKWARD, embedding_backward)                                                                                      \
	PLAIN(GATHER_ROWS, gather_rows)                                                                                                    \
	PLAIN(SCATTER_ROWS, scatter_rows)                                                                                                  \
	PLAIN(DROPOUT, dropout)                                                                                                            \
	OWN(HEAD_LOSS, head_loss)                                                                                                          \
	PLAIN(PREFERENCE, preference)                                                                                                      \
	PLAIN(ADD, add)                                                                                                                    \
	PLAIN(ROUTER, router)                                                                                                              \
	PLAIN(ROUTER_BACKWARD, router_backward)                                                                                            \
	PLAIN(PERMUTE, permute)                                                                                                            \
	PLAIN(UNPERMUTE, unpermute)                                                                                                        \
	PLAIN(UNPERMUTE_BACKWARD, unpermute_backward)                                                                                      \
	OWN(GROUPED_GEMM, grouped_gemm)                                                                                                    \
	OWN(GROUPED_GEMM_GRADIENT, grouped_gemm_gradient)                                                                                  \
	PLAIN(GROUPED_COLUMN_SUM, grouped_column_sum)                                                                                      \
	PLAIN(DEQUANTISE, dequantise)                                                                                                      \
	PLAIN(ACTIVATION, activation)                                                                                                      \
	PLAIN(ACTIVATION_BACKWARD, activation_backward)                                                                                    \
	PLAIN(LAYERNORM, layernorm)                                                                                                        \
	PLAIN(LAYERNORM_BACKWARD, layernorm_backward)                                                                                      \
	PLAIN(CONV, conv)                                                                                                                  \
	PLAIN(CONV_BACKWARD, conv_backward)                                                                                                \
	PLAIN(DELTA, delta)                                                                                                                \
	PLAIN(DELTA_BACKWARD, delta_backward)                                                                                              \
	PLAIN(GATE, gate)                                                                                                                  \
	PLAIN(GATE_BACKWARD, gate_backward)                                                                                                \
	PLAIN(DORA_NORM, dora_norm)                                                                                                        \
	PLAIN(DORA_SCALE, dora_scale)                                                                                                      \
	PLAIN(DORA_GRADIENT, dora_gradient)                                                                                                \
	PLAIN(QUANTISE_ROWS, quantise_rows)                                                                                                \
	PLAIN(LATENT, latent)                                                                                                              \
	PLAIN(LATENT_BACKWARD, latent_backward)                                                                                            \
	OWN(QUANTISE, quantise)                                                                                                            \
	OWN(TRANSPOSE, transpose)                                                                                                          \
	OWN(SCALED_GEMM, scaled_gemm)                                                                                                      \
	OWN(ADD_RMSNORM, add_rmsnorm)                                                                                                      \
	OWN(QK_ROPE, qk_rope)                                                                                                              \
	OWN(QK_ROPE_BACKWARD, qk_rope_backward)                                                                                            \
	OWN(LORA_LOW, lora_low)                                                                                                            \
	OWN(LORA_PART, lora_part)                                                                                                          \
	OWN(LORA_LOW_GRADIENT, lora_low_gradient)                                                                                          \
	OWN(LORA_INPUT_GRADIENT, lora_input_gradient)                                                                                      \
	OWN(LORA_A_GRADIENT, lora_a_gradient)                                                                                              \
	OWN(LORA_B_GRADIENT, lora_b_gradient)

#define RH_OP_KIND(kind, name) RH_OP_##kind,
enum rh_op_kind { RH_OPS(RH_OP_KIND, RH_OP_KIND) RH_OP_KINDS };
#undef RH_OP_KIND

/* FILL: y (r,c) act or F32 = 0. */
enum { RH_FILL_Y };

/* CAST: y (r,c) = x (r,c), rounded to y's dtype, nearest even. F32 and BF16. In place only when the dtypes are equal. */
enum { RH_CAST_X, RH_CAST_Y };

/* GEMM: d (m,n) = alpha * op(a) op(b) + c + bias. op(a) is a (m,k), or a (k,m) transposed when trans_a; op(b) is b (k,n), or b (n,k)
 * transposed when trans_b. a, b act (both the same); d F32 or act; c (m,n) of d's dtype, may be d itself, or absent; bias (1,n) act or
 * absent. Products are summed in fp32. */
enum { RH_GEMM_A, RH_GEMM_B, RH_GEMM_C, RH_GEMM_BIAS, RH_GEMM_D };

/* COLUMN_SUM: y (1,c) F32 += sum over rows of x (T,c) act, in an order that T alone fixes (CPU: of rows). The gradient of a bias. */
enum { RH_COLUMN_SUM_X, RH_COLUMN_SUM_Y };

/* RMSNORM: each row holds `groups` vectors of length n = w.cols side by side (1 for a layer's norm, heads for QK-norm).
 * rstd (T,groups) F32 = 1/sqrt(mean(x^2) + epsilon); y (T,groups*n) act = x * rstd * (offset + w). w (1,n) act. y may be x.
 * amax (T,groups): of y. (An offset of 1: Gemma.) */
enum { RH_RMSNORM_X, RH_RMSNORM_W, RH_RMSNORM_Y, RH_RMSNORM_RSTD, RH_RMSNORM_AMAX };

/* RMSNORM_BACKWARD: dx (T,groups*n) act = add + gradient; add (T,groups*n) act or absent; dx may be add or dy.
 * dw (1,n) F32 += or absent; y (T,groups*n) act = the forward's output again, or absent. dx_amax, y_amax (T,groups), the latter with y. */
enum {
	RH_RMSNORM_BACKWARD_X,
	RH_RMSNORM_BACKWARD_W,
	RH_RMSNORM_BACKWARD_RSTD,
	RH_RMSNORM_BACKWARD_DY,
	RH_RMSNORM_BACKWARD_ADD,
	RH_RMSNORM_BACKWARD_DX,
	RH_RMSNORM_BACKWARD_DW,
	RH_RMSNORM_BACKWARD_Y,
	RH_RMSNORM_BACKWARD_DX_AMAX,
	RH_RMSNORM_BACKWARD_Y_AMAX
};

/* ROPE_TABLE: table (T,D) F32 = cosines (D/2) then sines (D/2) of position (T,1) I32 times inv_freq (D/2), each times `scale` and, where
 * growth is not 0, times 1 + growth * log(1 + floor(position / step)). */
enum { RH_ROPE_TABLE_POSITION, RH_ROPE_TABLE_TABLE };
enum { RH_ROPE_MAX_HALF = 128 };

/* ROPE: x (T,heads*D) act, in place. Of each head R = table.cols elements from `first` on are rotated, the others stay: element i of their
 * first half and i of their second by the table's angle i; backwards (the inverse rotation, which is the gradient) when `inverse`. Where
 * `apart` is not 0, elements i and i + apart of a head are a pair, R / 2 such. Where `adjacent`, pairs lie side by side: elements 2 i and
 * 2 i + 1. amax (T,heads): of x, where rh_rope_has_amax(R), R is D and pairs do not lie side by side. */
enum { RH_ROPE_X, RH_ROPE_TABLE_IN, RH_ROPE_AMAX };
/* Whether the threads that turn a head, 8 pairs each, are a power of two. */
static inline int rh_rope_has_amax(int64_t rotary)
{
	int64_t threads = (rotary / 2 + 7) / 8;
	return threads > 0 && (threads & (threads - 1)) == 0;
}

/* ATTENTION: documents are runs of rows: document d has query rows [start_q[d], start_q[d+1]) and key rows [start_k[d], start_k[d+1]).
 * Query i of lq is at p = i + lk - lq and sees keys j <= p (and j > p - window where window > 0) of its document; in both directions all
 * (|j - p| < window); query head h reads key head h / (heads / kv_heads). q (Tq,heads*D), k, v (Tk,kv_heads*D) act; start_q, start_k
 * (documents+1,1) I32; o (Tq,heads*D) act = softmax(scale q k^T) v; lse (Tq,heads) F32 = log of the scaled scores' sum of e^. D is at
 * most 512. A query that sees no key has o = 0 and lse = -infinity. Rows that are no document's are left alone, here and in the backward.
 * A GPU makes the op in head_parts * row_parts launches (0 is 1): so many parts of the heads (in the backward key heads), and of each of
 * these so many parts of the blocks of rows. No bit depends on them.
 * sink (1,heads) act or absent: a head's logit of one more key, unscaled, whose value is 0; every query sees it (gpt-oss).
 * amax (Tq,heads): of o, of documents' rows, where D is at most RH_AMAX_HEAD_DIM. */
enum rh_attention_direction { RH_ATTENTION_CAUSAL, RH_ATTENTION_BOTH };
/* With p above 0 probabilities are dropped, and those that are kept divided by 1 - p; lse is that of all. Of query row i, key row j
 * and a head, word j' % 4 of Philox(rh_attention_drop_key; head << 22 | j' / 4, i', micro_batch, step) decides, as of DROPOUT, with
 * i' = first_q + i and j' = first_k + j. There are fewer than 1,024 heads then, and fewer than 2^24 keys. */
static inline uint64_t rh_attention_drop_key(uint64_t seed, uint32_t site)
{
	return seed + ((uint64_t)site + 1) * 0x9E3779B97F4A7C15u;
}
enum { RH_OP_MAX_HEAD_DIM = 512, RH_AMAX_HEAD_DIM = 256 };
enum {
	RH_ATTENTION_Q,
	RH_ATTENTION_K,
	RH_ATTENTION_V,
	RH_ATTENTION_START_Q,
	RH_ATTENTION_START_K,
	RH_ATTENTION_O,
	RH_ATTENTION_LSE,
	RH_ATTENTION_SINK,
	RH_ATTENTION_AMAX
};

/* ATTENTION_BACKWARD: dq, dk, dv = gradients, shaped as q, k, v. delta (Tq,heads) F32 is workspace. Where there are sinks: dsink (1,heads)
 * F32 += their gradient, or absent. space (rh_attention_space_rows or more, heads*D) F32 is workspace, or absent: with it some GPUs compute
 * scores once and not twice. They do so in BF16 for the D of rh_attention_uses_space.
 *
 * Runs of a document, the last one first (no document has fewer keys than queries): dk_sum, dv_sum (Tk,kv_heads*D) F32, both or neither,
 * hold what this op left there for all later queries of the same documents, zeros where there are none, and get what these queries add. In
 * which unit dk_sum counts is the device's. Then dk, dv are (Tq,kv_heads*D): of each document the gradients of its last keys, as many as
 * there are queries. Where runs begin at multiples of RH_ATTENTION_TILE within their document, o, lse, dq, dk and dv are those of the whole
 * document at once, bit for bit. */
enum { RH_ATTENTION_TILE = 128 };
enum {
	RH_ATTENTION_BACKWARD_Q,
	RH_ATTENTION_BACKWARD_K,
	RH_ATTENTION_BACKWARD_V,
	RH_ATTENTION_BACKWARD_START_Q,
	RH_ATTENTION_BACKWARD_START_K,
	RH_ATTENTION_BACKWARD_O,
	RH_ATTENTION_BACKWARD_LSE,
	RH_ATTENTION_BACKWARD_DO,
	RH_ATTENTION_BACKWARD_DELTA,
	RH_ATTENTION_BACKWARD_DQ,
	RH_ATTENTION_BACKWARD_DK,
	RH_ATTENTION_BACKWARD_DV,
	RH_ATTENTION_BACKWARD_SINK,
	RH_ATTENTION_BACKWARD_DSINK,
	RH_ATTENTION_BACKWARD_SPACE,
	RH_ATTENTION_BACKWARD_DK_SUM,
	RH_ATTENTION_BACKWARD_DV_SUM
};
static inline int rh_attention_uses_space(int64_t head_dim)
{
	return head_dim == 64 || head_dim == 96 || head_dim == 128;
}
/* Whether tensor cores multiply; else launches take longer. */
static inline int rh_attention_uses_tensor_cores(enum rh_dtype dtype, int64_t head_dim)
{
	int has_kernels = head_dim == 32 || head_dim == 64 || head_dim == 96 || head_dim == 128 || head_dim == 256 || head_dim == 512;
	return dtype == RH_BF16 && has_kernels;
}
static inline int64_t rh_attention_space_rows(int64_t q_rows, int64_t documents, int64_t head_dim)
{
	return q_rows + (q_rows / 32 + documents) * 4 / head_dim + 2;
}

/* LATENT: keys and values of multi-head latent attention (DeepSeek-V2). kv (T,heads*(N+V)) act has of each head N elements of its key and
 * then its value, shared (T,R) act the last R elements of the keys of all heads. k (T,heads*(N+R)) act = both; v (T,heads*W) act = each
 * value, behind it zeros: W is at least V, so that keys and values may be of one length.
 * BACKWARD: dkv (T,heads*(N+V)) and dshared (T,R) act of dk, dv, shaped as k and v; dshared = sums over the heads in order, in fp32. */
enum { RH_LATENT_KV, RH_LATENT_SHARED, RH_LATENT_K, RH_LATENT_V };
enum { RH_LATENT_BACKWARD_DK, RH_LATENT_BACKWARD_DV, RH_LATENT_BACKWARD_DKV, RH_LATENT_BACKWARD_DSHARED };

/* f(x): x sigmoid(x); x times the share of a normal distribution below x; its approximation 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715
 * x^3))) (Hendrycks and Gimpel 2016); of GLU only gpt-oss's x sigmoid(1.702 x) of a gate of at most 7, times 1 + an up within -7 and 7,
 * gates in even columns and ups in odd ones; of ACTIVATION only tanh(x). */
enum rh_activation { RH_ACT_SILU, RH_ACT_GELU, RH_ACT_GELU_TANH, RH_ACT_GPT_OSS, RH_ACT_TANH, RH_ACTS };
#define RH_GPT_OSS_ALPHA 1.702f
#define RH_GPT_OSS_LIMIT 7.0f

/* GLU: gu (T,2I) act holds gate then up; a (T,I) act = f(gate) * up. SwiGLU is that of RH_ACT_SILU, GeGLU of the others.
 * amax (T,rh_glu_parts(I)): of each RH_GLU_RUN columns of a. */
enum { RH_GLU_GU, RH_GLU_A, RH_GLU_AMAX };
enum { RH_GLU_RUN = 256 };
static inline int64_t rh_glu_parts(int64_t cols)
{
	return (cols + RH_GLU_RUN - 1) / RH_GLU_RUN;
}

/* GLU_BACKWARD: dgu (T,2I) act = gradient, may be gu; a (T,I) act = the forward's output once more, or absent; may be da. dot (T,1) F32 =
 * the sum over a row of da times a, which is not rounded before; or absent. dgu_amax, a_amax (T,rh_glu_parts(I)): of each RH_GLU_RUN
 * columns of a, and of the gates and ups that they are of; the latter with a alone. */
enum {
	RH_GLU_BACKWARD_GU,
	RH_GLU_BACKWARD_DA,
	RH_GLU_BACKWARD_DGU,
	RH_GLU_BACKWARD_A,
	RH_GLU_BACKWARD_DOT,
	RH_GLU_BACKWARD_DGU_AMAX,
	RH_GLU_BACKWARD_A_AMAX
};

/* ACTIVATION: y (r,c) act = f(x), may be x; of tanh with a cap above 0 cap tanh(x / cap). BACKWARD, of no cap: dx = dy f'(x), may be x or
 * dy; y = the forward's output once more, or absent; may be dy if dx is not. */
enum { RH_ACTIVATION_X, RH_ACTIVATION_Y };
enum { RH_ACTIVATION_BACKWARD_X, RH_ACTIVATION_BACKWARD_DY, RH_ACTIVATION_BACKWARD_DX, RH_ACTIVATION_BACKWARD_Y };

/* LAYERNORM: stats (T,2) F32 = mean, rstd = 1/sqrt(mean((x - mean)^2) + epsilon); y (T,n) act = (x - mean) * rstd * w + b. w, b (1,n) act,
 * b or absent. y may be x. */
enum { RH_LAYERNORM_X, RH_LAYERNORM_W, RH_LAYERNORM_B, RH_LAYERNORM_Y, RH_LAYERNORM_STATS };

/* LAYERNORM_BACKWARD: dx (T,n) act = add + gradient; add (T,n) act or absent; dx may be add or dy. dw, db (1,n) F32 += or absent; y (T,n)
 * act = the forward's output once more, or absent. */
enum {
	RH_LAYERNORM_BACKWARD_X,
	RH_LAYERNORM_BACKWARD_W,
	RH_LAYERNORM_BACKWARD_B,
	RH_LAYERNORM_BACKWARD_STATS,
	RH_LAYERNORM_BACKWARD_DY,
	RH_LAYERNORM_BACKWARD_ADD,
	RH_LAYERNORM_BACKWARD_DX,
	RH_LAYERNORM_BACKWARD_DW,
	RH_LAYERNORM_BACKWARD_DB,
	RH_LAYERNORM_BACKWARD_Y
};

/* CONV: a causal convolution of each column alone, then x sigmoid(x). Documents are runs of rows, as of ATTENTION. y (T,C) act = silu of
 * the sum over j below K of w(c,j) times x(t - K + 1 + j, c), where rows before the document are 0. x (T,C), w (C,K) act, K at most
 * RH_CONV_MOST; start (documents+1,1) I32. Rows that are no document's are left alone, here and in the backward.
 * Runs of a document: tail (K-1,C) act or absent are the rows before the first document's; end (K-1,C) act or absent = the last K - 1 rows
 * of the last document so far; may be tail.
 * BACKWARD: dx (T,C) act = gradient; dw (C,K) F32 += or absent. tail as above. Runs, the last one first: d_end (K-1,C) F32 or absent are
 * the gradients of the convolution's sums at the K - 1 rows behind the last document; d_tail (K-1,C) F32 or absent = those at its first
 * document's first K - 1 rows; may be d_end. y and dx are those of the whole document, bit for bit. */
enum { RH_CONV_MOST = 8 };
enum { RH_CONV_X, RH_CONV_W, RH_CONV_START, RH_CONV_Y, RH_CONV_TAIL, RH_CONV_END };
enum {
	RH_CONV_BACKWARD_X,
	RH_CONV_BACKWARD_W,
	RH_CONV_BACKWARD_START,
	RH_CONV_BACKWARD_DY,
	RH_CONV_BACKWARD_DX,
	RH_CONV_BACKWARD_DW,
	RH_CONV_BACKWARD_TAIL,
	RH_CONV_BACKWARD_D_END,
	RH_CONV_BACKWARD_D_TAIL
};

/* DELTA: the gated delta rule (Yang, Kautz and Hatamizadeh 2024). Of each document each value head has a state S (K,V), zeros at first, K
 * and V at most RH_DELTA_MOST; its key head is head / (heads / key_heads). For each token, with q, k that head's vectors, each divided by
 * sqrt(its squares' sum + 1e-6), and q by sqrt(K) too; g = -exp(a_log) softplus(a + dt_bias) and beta = sigmoid(b):
 *   S = e^g S + k (beta (v - (e^g S)^T k))^T,  o = S^T q.
 * q, k (T,key_heads*K), v (T,heads*V), b, a (T,heads), a_log, dt_bias (1,heads) act; start (documents+1,1) I32; o (T,heads*V) act, or
 * absent where the states alone are wanted. Rows that are no document's are left alone, here and in the backward. Devices take
 * RH_DELTA_CHUNK tokens at once, from where a document begins on.
 * Runs of a document: state (heads*K,V) F32 or absent is that before the first document; end (heads*K,V) F32 or absent = that behind the
 * last one; may be state where there is one document.
 * BACKWARD: dq, dk, dv, db, da = gradients, shaped as q, k, v, b, a; da_log, ddt_bias (1,heads) F32 += or absent. space (1, at least
 * rh_delta_space) F32 is workspace. state as above. Runs, the last one first: d_end (heads*K,V) F32 or absent is the gradient of the state
 * behind the last document; d_state (heads*K,V) F32 or absent = that of the state before the first; may be d_end where there is one
 * document. Where runs begin at multiples of RH_DELTA_CHUNK within their document, o, end, dq, dk, dv, db and da are those of the whole
 * document, bit for bit. */
enum { RH_DELTA_CHUNK = 64, RH_DELTA_MOST = 128 };
#define RH_DELTA_EPSILON 1e-6f
enum {
	RH_DELTA_Q,
	RH_DELTA_K,
	RH_DELTA_V,
	RH_DELTA_B,
	RH_DELTA_A,
	RH_DELTA_A_LOG,
	RH_DELTA_DT_BIAS,
	RH_DELTA_START,
	RH_DELTA_O,
	RH_DELTA_STATE,
	RH_DELTA_END
};
enum {
	RH_DELTA_BACKWARD_Q,
	RH_DELTA_BACKWARD_K,
	RH_DELTA_BACKWARD_V,
	RH_DELTA_BACKWARD_B,
	RH_DELTA_BACKWARD_A,
	RH_DELTA_BACKWARD_A_LOG,
	RH_DELTA_BACKWARD_DT_BIAS,
	RH_DELTA_BACKWARD_START,
	RH_DELTA_BACKWARD_DO,
	RH_DELTA_BACKWARD_DQ,
	RH_DELTA_BACKWARD_DK,
	RH_DELTA_BACKWARD_DV,
	RH_DELTA_BACKWARD_DB,
	RH_DELTA_BACKWARD_DA,
	RH_DELTA_BACKWARD_DA_LOG,
	RH_DELTA_BACKWARD_DDT_BIAS,
	RH_DELTA_BACKWARD_SPACE,
	RH_DELTA_BACKWARD_STATE,
	RH_DELTA_BACKWARD_D_END,
	RH_DELTA_BACKWARD_D_STATE
};
/* Places of chunks, of which document d's begin at start[d] / RH_DELTA_CHUNK + d: a few stay empty. Each has a state of every head and its
 * gradient, and two sums. */
static inline int64_t rh_delta_slots(int64_t rows, int64_t documents)
{
	return rows / RH_DELTA_CHUNK + documents;
}
static inline int64_t rh_delta_space(int64_t rows, int64_t documents, int64_t heads, int64_t k, int64_t v)
{
	return rh_delta_slots(rows, documents) * heads * 2 * (k * v + 1);
}

/* GATE: y (r,n) act = x f(z), x shaped as y, z too or (r,1), a gate for each row; with w (1,n) act y = x rstd w f(z), rstd (r,1) F32
 * 1/sqrt(mean(x^2) + epsilon). w and rstd both or neither.
 * BACKWARD: dx (r,n), dz, shaped as z, act = gradients, dx may be dy; dw (1,n) F32 += or absent, without w left alone; y = the forward's
 * output once more, or absent; may be dy if dx is not. */
enum rh_gate { RH_GATE_SILU, RH_GATE_SIGMOID, RH_GATES };
enum { RH_GATE_X, RH_GATE_Z, RH_GATE_W, RH_GATE_Y, RH_GATE_RSTD };
enum {
	RH_GATE_BACKWARD_X,
	RH_GATE_BACKWARD_Z,
	RH_GATE_BACKWARD_W,
	RH_GATE_BACKWARD_RSTD,
	RH_GATE_BACKWARD_DY,
	RH_GATE_BACKWARD_DX,
	RH_GATE_BACKWARD_DZ,
	RH_GATE_BACKWARD_DW,
	RH_GATE_BACKWARD_Y
};

/* EMBEDDING: y (T,H) act = scale times rows of table (V,H) act named by ids (T,1) I32. BACKWARD: dtable (V,H) F32 += scale * dy, in row
 * order. */
enum { RH_EMBEDDING_IDS, RH_EMBEDDING_TABLE, RH_EMBEDDING_Y };
enum { RH_EMBEDDING_BACKWARD_IDS, RH_EMBEDDING_BACKWARD_DY, RH_EMBEDDING_BACKWARD_DTABLE };

/* GATHER_ROWS: y (n,c) = rows of x (T,c) named by index (n,1) I32. */
enum { RH_GATHER_ROWS_X, RH_GATHER_ROWS_INDEX, RH_GATHER_ROWS_Y };

/* SCATTER_ROWS: y (T,c) = 0 but for the rows named by index (n,1) I32, which are x (n,c). Indices ascend. */
enum { RH_SCATTER_ROWS_X, RH_SCATTER_ROWS_INDEX, RH_SCATTER_ROWS_Y };

/* DROPOUT: y (r,c) act = add + (kept ? x / (1 - p) : 0); add or absent; y may be x or add. Element e = (first_row + row) * c + column is
 * kept when word e%4 of Philox(seed; e/4, site, micro_batch, step), as a fraction, is >= p. Its gradient is the same op on the gradient.
 * With noise above 0 (p is then 0) y = add + x + noise * (2 fraction - 1), whose gradient is that of add + x. */
enum { RH_DROPOUT_X, RH_DROPOUT_ADD, RH_DROPOUT_Y };

/* HEAD_LOSS: logits = alpha * h w^T + bias, chunk rows at a time (chunk = logits.rows). h (n,H), w (V,H), bias (1,V) or absent, act;
 * target (n,1) I32. alpha 0 is 1. With cap above 0 logits are cap tanh(of that / cap): then without teacher and shares.
 * loss (n,1) F32 = -log softmax at the target; hit (n,1) I32 = 1 where the target is the (first) largest logit.
 * dh (n,H) act = scale * gradient, or absent; dw (V,H), dbias (1,V) F32 += scale * gradient, or absent. logits (chunk,V) F32 is
 * workspace.
 * With low (n,r) and up (V,r) act, an adapter's, logits += low up^T before the cap; dlow (n,r) act = scale * gradient, dup (V,r) F32 +=
 * that, or absent.
 * With mix (n,1) F32, a weight for each row, loss = mix[0] * (-log softmax at the target).
 * With distillation teacher (n,V), logits too, and mix (n,2) are F32: loss = mix[0] * (-log softmax at the target) +
 * mix[1] * temperature^2 * KL, where KL is the divergence of softmax(teacher / temperature) and softmax(logits / temperature), one from
 * the other (enum rh_divergence). The teacher has no gradient. A row whose mix[1] is 0 does not read its teacher.
 *
 * Large vocabularies: top k > 0 (at most V, which is at most 2^24). Then a teacher is (n,2k): of each row k ids, ascending, as F32 numbers,
 * then their shares, softmax(teacher / temperature) of all V. KL is that of k + 1 buckets: these ids, and a residual for all others. The
 * student's residual is the sum of its other shares, the teacher's is max(1 - the sum of its k, RH_RESIDUAL_FLOOR); with k = V there is
 * none. Where a logarithm is taken, a teacher's share counts RH_SHARE_FLOOR at least. shares (n,2k) F32, or absent: the same of these
 * logits, those of the k largest; of equal ones the lower ids. Of a row with a NaN they are NaN. */
enum rh_divergence {
	RH_DIVERGENCE_FORWARD, /* KL(teacher || student): the sum of teacher * log(teacher / student) */
	RH_DIVERGENCE_REVERSE  /* KL(student || teacher) */
};
enum {
	RH_HEAD_LOSS_H,
	RH_HEAD_LOSS_W,
	RH_HEAD_LOSS_TARGET,
	RH_HEAD_LOSS_LOGITS,
	RH_HEAD_LOSS_LOSS,
	RH_HEAD_LOSS_HIT,
	RH_HEAD_LOSS_DH,
	RH_HEAD_LOSS_DW,
	RH_HEAD_LOSS_BIAS,
	RH_HEAD_LOSS_DBIAS,
	RH_HEAD_LOSS_TEACHER,
	RH_HEAD_LOSS_MIX,
	RH_HEAD_LOSS_SHARES,
	RH_HEAD_LOSS_LOW,
	RH_HEAD_LOSS_UP,
	RH_HEAD_LOSS_DLOW,
	RH_HEAD_LOSS_DUP
};
/* Rounding k fp32 shares moves their sum by 2^-24 at most, and adding them up by few times that: a residual below 2^-20 is noise. And the
 * smallest normal fp32 number. */
#define RH_RESIDUAL_FLOOR 0x1p-20f
#define RH_SHARE_FLOOR    0x1p-126f
enum { RH_TOP_IDS = 1 << 24 }; /* ids below are whole fp32 numbers */

/* PREFERENCE: between two walks of HEAD_LOSS over a micro-batch's head rows, what each row weighs in a loss over whole answers
 * (core/preference.h). loss (n,1) F32 are the first walk's cross-entropies; span (documents,4) I32 and reference (documents,1) F32 as
 * struct rh_judged has them, whose first head rows ascend. sum (documents,2) F32 = sums of loss over the document's answer, and over all
 * its head rows, added in fp64. mix (n,1) F32 = the derivative of the rows' summed losses by the row's cross-entropy; cross-entropies that
 * count themselves are means over the micro-batch's chosen answers, times its rows. dh (n,H) act *= mix, or absent: where the head is
 * frozen dh of the first walk is linear in it, and there is no second one. Rows of all but dh are back to back. */
enum {
	RH_PREFERENCE_OP_LOSS,
	RH_PREFERENCE_OP_SPAN,
	RH_PREFERENCE_OP_REFERENCE,
	RH_PREFERENCE_OP_SUM,
	RH_PREFERENCE_OP_MIX,
	RH_PREFERENCE_OP_DH
};

/* ADD: y (r,c) act = scale (a + b), both (r,c) of y's dtype, b perhaps absent; y may be either. scale (1,1) act or absent: 1. */
enum { RH_ADD_A, RH_ADD_B, RH_ADD_Y, RH_ADD_SCALE };

/* Mixtures of experts. Of E experts each token goes to k; n = T*k pairs (at most 2^30) of a token and a place among its experts. E and k
 * have the limits below. A layer is ROUTER, PERMUTE, GROUPED_GEMM, an activation, GROUPED_GEMM, UNPERMUTE; backward in the opposite order,
 * with UNPERMUTE (no weights) for PERMUTE.
 *
 * ROUTER: index (T,k) I32 = the k largest of logits (T,E) act or F32, largest first, the lower expert first where they are equal; NaN
 * counts as -infinity. weight (T,k) F32 = their shares of a softmax: over all E experts (Qwen3-MoE without norm_topk_prob), or over the k
 * chosen, which is also what dividing the former by their sum gives (Qwen3-MoE with norm_topk_prob, Mixtral, gpt-oss).
 * load (T,2E) F32 or absent = of each expert 1 where it was chosen, else 0; then of each its share of a softmax over all E. Its column sums
 * are what a load balancing loss is made of.
 * scale (1,E) act or absent: a weight is its share times its expert's scale (Gemma 4). factor: all weights are multiplied by it; 0: 1.
 *
 * With `sigmoid` (DeepSeek-V3, GLM-4.5 and later) shares are no softmax: each is its logit's sigmoid, over the chosen divided by their sum
 * + 1e-20. bias (p,E) act or absent, whose rows are added up in fp32, counts in the choice alone: chosen are the k largest sums of a
 * sigmoid and its bias. Where groups > 1, experts are chosen from best_groups groups of E / groups (at least 2) alone: a group's worth is
 * the sum of its two largest such sums; of equal groups the lower goes first. k is at most the number of experts in so many groups. With
 * `sigmoid` there is no load, and no count in the backward, which reads neither bias nor groups. */
enum { RH_ROUTER_LOGITS, RH_ROUTER_INDEX, RH_ROUTER_WEIGHT, RH_ROUTER_LOAD, RH_ROUTER_SCALE, RH_ROUTER_BIAS };
enum rh_router_softmax { RH_ROUTER_OVER_ALL, RH_ROUTER_OVER_CHOSEN };
enum { RH_ROUTER_MAX_EXPERTS = 1024, RH_ROUTER_MAX_TOP = 32, RH_ROUTER_MAX_GROUPS = 32, RH_MOE_MAX_PAIRS = 1 << 30 };
#define RH_ROUTER_EPSILON 1e-20f

/* ROUTER_BACKWARD: dlogits (T,E) act or F32 = gradient through the weights; the choice has none. index and weight are ROUTER's, place
 * (T,k) I32 is PERMUTE's. The gradient of weight(t,j), times that weight, is row place(t,j) of dot (n,1) F32 + the weight times more(t,
 * index(t,j)), more (T,E) F32 or absent. A softmax needs no other: no weight, which may be 0, is divided by.
 * An expert's y = W a + b counts in a token by its weight, so with its rows dx of UNPERMUTE_BACKWARD dot = <dx, W a> = <dx W, a>,
 * GLU_BACKWARD's dot; and more = dy b^T. So y is not read, nor made again before the backward.
 * With count (1,E) F32, or absent, there is a load balancing loss too: the gradient of each token's share of expert e in a softmax over all
 * E is `balance` times count(e).
 * Scales of experts are factors of a weight as its share is, so the share's gradient takes no other dot. dscale (T,E) F32, only with
 * scale (1,E) act: each token's part of its experts' scales' gradient, whose column sums are that gradient; 0 of experts not chosen, and
 * of those whose scale is 0, which dot cannot tell. */
enum {
	RH_ROUTER_BACKWARD_LOGITS,
	RH_ROUTER_BACKWARD_INDEX,
	RH_ROUTER_BACKWARD_WEIGHT,
	RH_ROUTER_BACKWARD_PLACE,
	RH_ROUTER_BACKWARD_DOT,
	RH_ROUTER_BACKWARD_MORE,
	RH_ROUTER_BACKWARD_COUNT,
	RH_ROUTER_BACKWARD_DLOGITS,
	RH_ROUTER_BACKWARD_SCALE,
	RH_ROUTER_BACKWARD_DSCALE
};

/* PERMUTE: sorts the pairs by expert, stably. start (E+1,1) I32: expert e has rows [start[e], start[e+1]) of what is sorted, start[E] = n;
 * place (T,k) I32: the row that a pair went to; y (n,c) = rows of x (T,c) act, copied there. index (T,k) I32 in [0, E). */
enum { RH_PERMUTE_INDEX, RH_PERMUTE_X, RH_PERMUTE_START, RH_PERMUTE_PLACE, RH_PERMUTE_Y };

/* UNPERMUTE: y (T,c) act = sum over j of weight (T,k) times rows place (T,k) of x (n,c), in the order of j, + add (T,c) act or absent.
 * Without weights each is 1: the gradient of PERMUTE. y may be add. */
enum { RH_UNPERMUTE_X, RH_UNPERMUTE_PLACE, RH_UNPERMUTE_WEIGHT, RH_UNPERMUTE_ADD, RH_UNPERMUTE_Y };

/* UNPERMUTE_BACKWARD: dx (n,c) act: row place(t,j) = weight(t,j) times row t of dy (T,c) act. Of the weights' own gradient:
 * ROUTER_BACKWARD. */
enum { RH_UNPERMUTE_BACKWARD_DY, RH_UNPERMUTE_BACKWARD_PLACE, RH_UNPERMUTE_BACKWARD_WEIGHT, RH_UNPERMUTE_BACKWARD_DX };

/* GROUPED_GEMM: a product an expert. Rows r in [start[e], start[e+1]) of d (R,n) = alpha * row r of a (R,k) times op(b_e) + row r of c +
 * bias row e. b holds the experts' matrices one under another: b_e (k,n), or (n,k) transposed when trans_b. a, b act (both the same); d F32
 * or act; c (R,n) of d's dtype, may be d itself, or absent; bias (E,n) act or absent. start (E+1,1) I32 ascends within [0, R]; rows that
 * are no expert's are left alone. Products are summed in fp32. The starts are read where the op runs: the host never waits for them. */
enum { RH_GROUPED_GEMM_A, RH_GROUPED_GEMM_B, RH_GROUPED_GEMM_START, RH_GROUPED_GEMM_C, RH_GROUPED_GEMM_BIAS, RH_GROUPED_GEMM_D };

/* GROUPED_GEMM_GRADIENT: d_e (m,n) F32 += alpha * transposed rows of a (R,m) times rows of b (R,n), those of expert e: the gradient of the
 * experts' matrices, one under another in d (E*m,n). a, b act; start as above. */
enum { RH_GROUPED_GEMM_GRADIENT_A, RH_GROUPED_GEMM_GRADIENT_B, RH_GROUPED_GEMM_GRADIENT_START, RH_GROUPED_GEMM_GRADIENT_D };

/* GROUPED_COLUMN_SUM: y (E,c) F32 += sums over the rows of each expert of x (R,c) act, ordered as COLUMN_SUM's.
 * The gradient of the experts' biases. */
enum { RH_GROUPED_COLUMN_SUM_X, RH_GROUPED_COLUMN_SUM_START, RH_GROUPED_COLUMN_SUM_Y };

/* DEQUANTISE: y (r,c) act = what x (r,c) stands for (core/blocks.h), to the last bit before it is rounded to act; with index (n,1) I32
 * y (n,c) = the rows of x that it names. x is of one of GGML's block types, scales inside; or has a scale for each `run` values of a row,
 * a multiple of 8, and `tall` rows, the last ones perhaps fewer: scale (r / tall, c / run, both rounded up).
 * - I8: q * scale * unit, scale F32. E4M3: value * scale, F32.
 * - FP4: value * 2^(scale - 127), scale U8; or value * (scale * nested[0] / nested[1]), scale E4M3 and nested (1,2) F32.
 * - NF4, BNB_FP4: value * scale, F32; or scale U8, of which scale i of all (row after row) is map[i] * nested[i / 256] + map[256], nested
 *   (1, 256ths of all) and map (1,257) F32.
 * (bitsandbytes 0.45: 4-bit with and without double quantisation, run 64; LLM.int8 with a run of all of a row and unit 1/127; gpt-oss: FP4,
 * run 32; NVFP4: FP4, run 16, nested[0] 1 where compressed-tensors wrote it, nested[1] 1 where ModelOpt did; fp8 in blocks of 128 by 128.)
 * Blocks that straddle rows are one long row to this op. */
enum { RH_DEQUANTISE_X, RH_DEQUANTISE_SCALE, RH_DEQUANTISE_NESTED, RH_DEQUANTISE_MAP, RH_DEQUANTISE_INDEX, RH_DEQUANTISE_Y };

/* QUANTISE: scale (1,1) F32 = the least power of two with max|x| <= limit * scale (rh_power_scale in core/float8.h: 1 where x is all zeros,
 * NaN where it holds what is no number); y (r,c) E4M3 or E5M2 = x / scale, nearest even, or absent; t (c, r rounded up to 16) of such a
 * type = its transpose, zeros in the columns beyond r, or absent. x (r,c) act. part (1,512) F32 is workspace. amax (r,n) F32, or absent, is
 * what the op that made x left of its first `known` columns (0 without amax): only the others are read for the scale. A limit of at most
 * 448 with E4M3, 57344 with E5M2. */
enum { RH_QUANTISE_X, RH_QUANTISE_PART, RH_QUANTISE_SCALE, RH_QUANTISE_Y, RH_QUANTISE_T, RH_QUANTISE_AMAX };
enum { RH_QUANTISE_PARTS = 512, RH_QUANTISE_RUN = 16 };

/* QUANTISE_ROWS: the same for each row alone, in E4M3: scale (r,1) F32, y (r,c) E4M3 of x (r,c) act. Of a row alone, so that it does not
 * matter which rows are quantised together; DEQUANTISE with a run of c or more (a multiple of 8) and tall 1 undoes it. */
enum { RH_QUANTISE_ROWS_X, RH_QUANTISE_ROWS_SCALE, RH_QUANTISE_ROWS_Y };

/* TRANSPOSE: y (c,r) = x (r,c), its rows as columns; both E4M3 or both E5M2, r and c multiples of 16, rows begin on 16 bytes. */
enum { RH_TRANSPOSE_X, RH_TRANSPOSE_Y };

/* SCALED_GEMM: d (m,n) = alpha * scale_a * scale_b * op(a) op(b) + c + bias, the scales (1,1) F32; c (m,n) of d's dtype, may be d itself,
 * or absent; bias (1,n) BF16 or absent; d F32 or BF16. One of two:
 * - chunk 0: a (m,k) and b (n,k), trans_b, E4M3 or E5M2, not both E5M2; n and k multiples of 16. Products are summed in fp32.
 * - chunk, a multiple of 32, at most 2048: a, b BF16 as in GEMM, but not both transposed. Elements of a and b are divided by their scales
 *   and rounded to fp16, products summed in fp16 (rounded after each 16 of k) over chunks of k, whose sums are added up in fp32. The
 *   scales are powers of two, and no chunk can overflow when both limits were rh_half_limit(chunk).
 * Rows of all matrices begin on 16 bytes; k is not 0. */
enum {
	RH_SCALED_GEMM_A,
	RH_SCALED_GEMM_B,
	RH_SCALED_GEMM_SCALE_A,
	RH_SCALED_GEMM_SCALE_B,
	RH_SCALED_GEMM_C,
	RH_SCALED_GEMM_BIAS,
	RH_SCALED_GEMM_D
};
enum { RH_CHUNK_UNIT = 32, RH_CHUNK_MOST = 2048 };
/* The largest power of two of which a chunk of squares stays within fp16's 65504, with room for what rounding adds. */
static inline float rh_half_limit(int64_t chunk)
{
	float limit = 32;
	while (limit * limit * (float)chunk > 32768)
		limit /= 2;
	return limit;
}

/* Fused ops: each stands for several others, its parts (rh_op_parts), so that a GPU launches once and moves less. Devices that have no
 * kernel of their own for one run its parts; both round where the parts round, unless said otherwise.
 *
 * ADD_RMSNORM: ADD, then RMSNORM of the sum: sum (T,n) act = a + b, rounded; rstd (T,1) F32 and y (T,n) act = RMSNORM of sum, w (1,n);
 * amax (T,1): of y. */
enum {
	RH_ADD_RMSNORM_A,
	RH_ADD_RMSNORM_B,
	RH_ADD_RMSNORM_W,
	RH_ADD_RMSNORM_SUM,
	RH_ADD_RMSNORM_Y,
	RH_ADD_RMSNORM_RSTD,
	RH_ADD_RMSNORM_AMAX
};

/* QK_ROPE: x (T,(heads+kv_heads)*D) act holds query heads, then key heads. y, shaped as x, = RMSNORM of each head by q_w or k_w (1,D),
 * rounded to act, then ROPE; rstd (T,heads+kv_heads) F32. BACKWARD: dx = gradient, may be dy: dy is turned back and rounded to act, then
 * RMSNORM_BACKWARD; dq_w, dk_w (1,D) F32 += or absent; amax (T,heads+kv_heads): of dx. */
enum { RH_QK_ROPE_X, RH_QK_ROPE_Q_W, RH_QK_ROPE_K_W, RH_QK_ROPE_TABLE, RH_QK_ROPE_Y, RH_QK_ROPE_RSTD };
enum {
	RH_QK_ROPE_BACKWARD_X,
	RH_QK_ROPE_BACKWARD_Q_W,
	RH_QK_ROPE_BACKWARD_K_W,
	RH_QK_ROPE_BACKWARD_RSTD,
	RH_QK_ROPE_BACKWARD_TABLE,
	RH_QK_ROPE_BACKWARD_DY,
	RH_QK_ROPE_BACKWARD_DX,
	RH_QK_ROPE_BACKWARD_DQ_W,
	RH_QK_ROPE_BACKWARD_DK_W,
	RH_QK_ROPE_BACKWARD_AMAX
};

/* Adapters of up to 3 linears that read the same x (T,in) and whose outputs lie side by side: module m, out[m] columns of y, has a_m
 * (r_m,in), b_m (out[m],r_m) and scale[m]; or neither, and counts for nothing. drop_m(x) is DROPOUT of x with site[m] (x itself where p is
 * 0), rounded to act. Operands of all six are named alike; those of absent modules are absent.
 * LOW:             low_m (T,r_m) = drop_m(x) a_m^T                  wide: x, matrix: a_m
 * PART:            y = scale_m low_m b_m^T, side by side, 0 where there is no module; + c (T, sum of out) of y's dtype or absent
 *                                                                   wide: y, matrix: b_m
 * LOW_GRADIENT:    dlow_m (T,r_m) = scale_m dy_m b_m                wide: dy, low: dlow_m, matrix: b_m
 * INPUT_GRADIENT:  dx (T,in) = sum of drop_m's gradient of dlow_m a_m, in the order of m, rounded once, or after each module
 *                                                                   wide: dx, low: dlow_m, matrix: a_m
 * A_GRADIENT:      da_m (r_m,in) F32 += dlow_m^T drop_m(x)          wide: x, low: dlow_m, matrix: da_m
 * B_GRADIENT:      db_m (out[m],r_m) F32 += scale_m dy_m^T low_m    wide: dy, matrix: db_m
 * space (T,in) act: workspace of those that drop, where p is not 0. */
enum { RH_LORA_MODULES = 3 };
enum {
	RH_LORA_WIDE,
	RH_LORA_LOWS,
	RH_LORA_MATRICES = RH_LORA_LOWS + RH_LORA_MODULES,
	RH_LORA_SPACE = RH_LORA_MATRICES + RH_LORA_MODULES, /* of PART: c */
	RH_LORA_OPERANDS
};
enum { RH_LORA_C = RH_LORA_SPACE };

/* DoRA of up to 3 linears that lie side by side, as LORA has them: module m has out[m] rows of w (out,in), and a_m (r_m,in), b_m
 * (out[m],r_m), scale[m] and magnitudes m_m (1,out[m]), or none of these. Its y is g (x w^T + scale (x a^T) b^T) + bias, with g = m / n for
 * each output, n the norm of a row of w + scale b a. The gradient takes n as constant, as PEFT does.
 * NORM:     g (sum of out,2) F32: g, then 1 / n; 1 and 0 of modules that have none. w, a, b, m act of one dtype
 * SCALE:    y (T,out) act = x * g + bias + c, the latter two act or absent; y may be x or c. Its gradient is SCALE of dy
 * GRADIENT: dm_m (1,out[m]) F32 += sum over rows of dy u / n, u (T,sum of out) act being what SCALE scaled, or absent */
enum {
	RH_DORA_NORM_W,
	RH_DORA_NORM_AS,
	RH_DORA_NORM_BS = RH_DORA_NORM_AS + RH_LORA_MODULES,
	RH_DORA_NORM_MS = RH_DORA_NORM_BS + RH_LORA_MODULES,
	RH_DORA_NORM_G = RH_DORA_NORM_MS + RH_LORA_MODULES
};
enum { RH_DORA_SCALE_X, RH_DORA_SCALE_G, RH_DORA_SCALE_BIAS, RH_DORA_SCALE_C, RH_DORA_SCALE_Y };
enum { RH_DORA_GRADIENT_DY, RH_DORA_GRADIENT_U, RH_DORA_GRADIENT_G, RH_DORA_GRADIENT_DMS };

/* The most operands of an op. */
enum { RH_OP_OPERANDS = 20 };

struct rh_op {
	enum rh_op_kind kind;
	struct rh_view operand[RH_OP_OPERANDS];
	union {
		struct {
			int trans_a, trans_b;
			float alpha;
		} gemm;
		struct {
			int64_t groups;
			float epsilon, offset;
		} rmsnorm; /* and its backward */
		struct {
			float scale; /* 0: 1 */
		} embedding;         /* and its backward */
		struct {
			float inv_freq[RH_ROPE_MAX_HALF];
			float scale, growth, step;
		} rope_table;
		struct {
			int64_t heads;
			int inverse;
			int64_t apart; /* 0: R / 2 */
			int64_t first;
			int adjacent;
		} rope;
		struct {
			int64_t heads, kv_heads, documents, longest, window; /* longest: query rows of the longest document */
			float scale;
			enum rh_attention_direction direction;
			int64_t head_parts, row_parts;
			float p; /* 0: nothing is dropped, and what follows is not read */
			uint32_t step;
			uint64_t seed;
			uint32_t micro_batch, site, first_q, first_k;
		} attention; /* and its backward */
		struct {
			uint64_t seed;
			uint32_t step, micro_batch, site;
			float p;
			uint32_t first_row;
			float noise;
		} dropout;
		struct {
			float scale, alpha, cap;
			float temperature; /* and divergence: with a teacher, or with shares */
			enum rh_divergence divergence;
			int64_t top; /* 0: a teacher is logits */
		} head_loss;
		struct rh_preference preference;
		struct {
			enum rh_router_softmax softmax;
			float balance; /* of the backward */
			int sigmoid;
			float factor;
			int64_t groups, best_groups; /* groups 0 and 1: all experts are in one */
		} router;                            /* and its backward */
		struct {
			int trans_b; /* of GROUPED_GEMM alone */
			float alpha;
		} grouped_gemm; /* and its gradient */
		struct {
			int64_t run, tall; /* 0 where scales are inside */
			float unit;
		} dequantise;
		struct {
			enum rh_activation act;
			float cap;
		} activation; /* GLU, ACTIVATION and their backwards */
		struct {
			float epsilon;
		} layernorm;
		struct {
			int64_t documents;
		} conv; /* and its backward */
		struct {
			int64_t heads, key_heads, documents;
		} delta; /* and its backward */
		struct {
			enum rh_gate f;
			float epsilon;
		} gate; /* and its backward */
		struct {
			int64_t heads, value; /* value: V */
		} latent;                     /* and its backward */
		struct {
			float limit;
			int64_t known;
		} quantise;
		struct {
			int trans_a, trans_b;
			float alpha;
			int64_t chunk;
		} scaled_gemm;
		struct {
			int64_t heads, kv_heads;
			float epsilon, offset; /* as of rmsnorm */
		} qk_rope;                     /* and its backward; of ADD_RMSNORM epsilon and offset alone */
		struct {
			int64_t out[RH_LORA_MODULES]; /* 0: no linear */
			float scale[RH_LORA_MODULES], p;
			uint32_t site[RH_LORA_MODULES], step, micro_batch, first_row; /* as of dropout */
			uint64_t seed;
		} lora; /* of DORA_NORM and DORA_GRADIENT out and scale alone */
	};
};

/* What an op reads and writes, for address translation, checks, cost and tracing. */
enum rh_access { RH_ACCESS_NONE, RH_ACCESS_IN, RH_ACCESS_OUT, RH_ACCESS_INOUT };
struct rh_op_info {
	const char *name;
	int operands;
	struct {
		const char *name;
		enum rh_access access;
		int optional, is_amax;
	} operand[RH_OP_OPERANDS];
};
const struct rh_op_info *rh_op_info(enum rh_op_kind kind);

/* NULL if operands, shapes and dtypes are as documented above, else what is wrong (a literal). A wrong op is our own mistake: devices
 * assert. */
const char *rh_op_fault(const struct rh_op *op);

/* FLOPs of matrix products (2 per multiply-add), FLOPs of everything else, bytes read and written once each. Of attention an
 * upper estimate, as only the `longest` document is known: a query sees half of it and the keys cached before it, at most a window. */
struct rh_op_cost {
	double product_flops, other_flops, bytes;
};
struct rh_op_cost rh_op_cost(const struct rh_op *op);

/* Sets head_parts and row_parts of ATTENTION or its backward, so that no launch has more FLOPs of products; 0: one launch. */
void rh_attention_split(struct rh_op *op, double most_flops);
/* The most that a launch has of the op: 1 where there is one. Of attention by its parts, of HEAD_LOSS by its chunks. */
double rh_op_launch_share(const struct rh_op *op);

/* Of a fused op: calls `run` with each of its parts in order, until one fails; that one's status. They leave no amax. */
typedef int rh_op_run(void *user, const struct rh_op *part);
int rh_op_parts(const struct rh_op *op, rh_op_run *run, void *user);
int rh_op_is_fused(enum rh_op_kind kind);

/* Every amax that the op is to leave, of its outputs in host memory: for devices whose kernels leave none. */
void rh_op_amax(const struct rh_op *op);

/* The op in plain C on host memory, fp64 sums where fp32 order would matter: what every device is tested against. */
void rh_op_oracle(const struct rh_op *op);

#endif
