"""Public names of kernels by class, as profilers print them; template lists are cut short."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "attention": (
        "void fmha_cutlassB_f16_aligned_64x64_k64_sm80(PyTorchMemEffAttention::AttentionB"
        "ackwardKernel<X>::Params)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x"
        "1x1_kernel0_0",
        "void flash_bwd_dot_do_o_kernel<true, X>(Flash_bwd_params)",
        "_attn_fwd",
        "void vllm::paged_attention_v1_kernel<unsigned short>(int)",
        "triton_tem_fused_flex_attention_0",
        "mla_a8w8_qh16_qseqlen1_gqaratio16",
        "void flashinfer::MergeStatesKernel<8u>(int)",
        "chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
        "void cutlass::device_kernel<cutlass::fmha::kernel::Sm100FmhaFwdKernelTmaWarpspec"
        "ialized<X>>(P)",
    ),
    "communication": (
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclSymkDevKernel_AllGather_LL(ncclDevComm)",
        "void flashinfer::trtllm_allreduce::allreduce_fusion_kernel_oneshot_lamport<X>(int)",
        "void deep_ep::intranode::combine<__nv_bfloat16, 8>(int)",
        "void (anonymous namespace)::multimem_one_shot_all_reduce_kernel<c10::BFloat16>(int)",
        "void nvshmemi_transfer_rma<X>(int)",
        "void tensorrt_llm::kernels::moeAllReduceFusionKernel<X>(int)",
        "ncclKernel_AllReduce_TREE_LL_Sum_half(ncclWorkElem)",
        "void flashinfer::moe::moeA2ADispatchKernel<8, __nv_bfloat16>(int)",
        "moe_a2a_combine_kernel",
        "void tensorrt_llm::kernels::fusedMoeCommKernel<1>(int)",
        "void mori::moe::EpDispatchInterNodeKernel<__hip_bfloat16>(int)",
        "void pplx::a2a_dispatch_send_kernel<X>(int)",
        "void bytedance::flux::a2av_kernel<X>(int)",
        "void all2all_single_2d_kernel<X>(int)",
        "kernel_dispatch_token",
        "deepep_low_latency_combine",
        "void mori::moe::EpCombineAll<__hip_bfloat16>(int)",
        "void flashinfer::trtllm_alltoall::moeAllToAllKernel<X>(int)",
        "barrier_on_stream_kernel_threadgroup<X>(int)",
        "void c10d::nvshmem_extension::tile_reduce_kernel<float>(int)",
        "void (anonymous namespace)::stream_write_value32_kernel(int)",
    ),
    "convolution": (
        "triton_tem_fused_convolution_4",
        "sm80_xmma_dgrad_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_cudnn",
        "ampere_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
        "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, float"
        ", int>(int)",
        "void at::native::im2col_kernel<float>(long)",
        "void causal_conv1d_fwd_kernel<X>(ConvParamsBase)",
        "MIOpenConvUni.kd",
        "void cudnn::cnn::conv2d_grouped_direct_kernel<float>(int)",
        "void cudnn::cnn::kern_precompute_indices<false>(int)",
        "trt_turing_h884cudnn_256x64_ldg8_relu_exp_small_nhwc_tn_v1",
    ),
    "elementwise": (
        "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl"
        "(X)::{lambda()#1}, at::detail::Array<char*, 2> >(int)",
        "void vllm::act_and_mul_kernel<c10::Half, &silu>(int)",
        "void vllm::rotary_embedding_kernel<c10::Half, true>(long const*)",
        "triton_poi_fused_add_relu_1",
        "loop_add_multiply_fusion",
        "void axpy_kernel_val<float, float>(int)",
        "void at::native::triu_tril_kernel<float, long, true>(int)",
        "void cudnn::ops::scalePackedTensor_kernel<float, float>(int)",
        "ReLUForward",
        "MIOpenNeuronFwd.kd",
        "SubTensorOpWithScalar1d.kd",
        "wrapped_exponential",
        "void k_bin_bcast<&op_add, float, float, float>(float const*)",
        "void cudnn::detail::activation_fw_4d_kernel<float, float, 128, 1, 4, 4, X>(int)",
        "void cudnn::ops::convertTensor_kernel<float, __half, float>(int)",
    ),
    "embedding": (
        "void at::native::(anonymous namespace)::EmbeddingBag_updateOutputKernel_sum_mean"
        "<float, long>(int)",
        "void at::native::(anonymous namespace)::compute_grad_weight<float, long>(int)",
        "void fbgemm_gpu::bounds_check_indices_kernel<long>(int)",
        "void embedding_bag_nbits_rowwise_kernel<X>(int)",
        "cunn_LookupTable_accGradParametersKernelByFeature",
    ),
    "fft": (
        "void vector_fft<256u, EPT<16u>>(kernel_arguments_t<unsigned int>)",
        "void spVector0256C::kernelMem<unsigned int, float>(int)",
        "void composite_2way_fft<50u, 5u>(int)",
        "fft_fwd_len1024_dp_op_CI_CI",
    ),
    "gemm": (
        "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
        "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass:"
        ":gemm::kernel::GemmUniversal<cute::tuple<int,int,int,int>, cutlass::gemm::collec"
        "tive::CollectiveMma<X>>>>(Params)",
        "void deep_gemm::sm90_fp8_gemm_1d2d_impl<1u, 2u>(float*)",
        "void marlin::Marlin<__half, 256, 4>(int4 const*)",
        "void at::native::tinygemm_m16n8k16_chunk_kernel<int>(void const*)",
        "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16>(cublasGemvParams)",
        "void wvSplitK_hf_sml_<__half, 32, 2>(int)",
        "triton_tem_fused_mm_5",
        "void ck::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemm<X>>(int)",
        "Custom_Cijk_Alik_Bljk_BBS_BH_Bias_MT256x256x64_MI16x16x1",
        "fermiPlusCgemmLDS128_batched",
    ),
    "layout": (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::Te"
        "nsorListMetadata<2>, at::native::CopyFunctor<int, long, 2, 1, 1>, at::native::Co"
        "py<int, long>>(int)",
        "void at::native::(anonymous namespace)::reflection_pad2d_out_kernel<float>(int)",
        "void at::native::roll_cuda_kernel<float>(int)",
        "void vllm::reshape_and_cache_kernel<unsigned short>(int)",
        "void transpose_readWrite_alignment_kernel<float, float, 1>(int)",
        "loop_transpose_fusion",
        "void at::native::(anonymous namespace)::split_with_sizes_copy_out_contiguous_no_"
        "cast_kernel<int>(int)",
        "void at::native::(anonymous namespace)::chunk_cat_cuda_kernel<float, float>(int)",
        "loop_dynamic_update_slice_fusion",
        "concat_variable_kernel",
        "void cpy_f32_f16<&cpy_1>(char const*)",
        "write_req_to_token_pool_triton",
        "void genericReformat::copyVectorizedKernel<X>(int)",
    ),
    "loss": (
        "void at::native::(anonymous namespace)::ctc_loss_log_alpha_gpu_kernel<float, long>(int)",
        "void at::native::(anonymous namespace)::MultiMarginLoss_forward_kernel<2, float>(int)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespa"
        "ce)::smooth_l1_kernel(X)::{lambda()#1}>(int)",
        "cross_entropy_fwd_kernel",
        "_cross_entropy_forward",
    ),
    "memory": (
        "Memcpy HtoD (Pinned -> Device)",
        "Memset (Device)",
        "__amd_rocclr_fillBufferAligned.kd",
    ),
    "moe": (
        "void vllm::moe::topkGatingSoftmax<8, 8>(float const*)",
        "void vllm::moe::moe_align_block_size_kernel<int>(int*)",
        "void moe::dev::permute::permuteKernel<X>(int)",
        "void moe::dev::finalize::finalizeKernel<X>(int)",
        "_row_id_map_pass_1_kernel",
        "void grouped_topk_fused_kernel<float>(float*)",
        "aiter::fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tg_32x256",
    ),
    "normalization": (
        "void at::native::(anonymous namespace)::RowwiseMomentsCUDAKernel<float>(long)",
        "void cudnn::bn_fw_inf_1C11_kernel_NCHW<float>(int)",
        "void vllm::rms_norm_kernel<c10::Half>(c10::Half*)",
        "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<"
        "float, float, false>(int)",
        "triton_per_fused__native_batch_norm_legit_functional_2",
        "triton_red_fused_var_mean_0",
        "void weight_norm_fwd_first_dim_kernel<float>(float*)",
        "_rms_norm_fwd_fused",
        "void norm_f32<1024>(float const*)",
    ),
    "optimizer": (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::Fu"
        "sedOptimizerTensorListMetadata<4>, at::native::FusedAdamMathFunctor<float, 4>>(i"
        "nt)",
        "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float, float, "
        "int>, float>(int)",
        "kOptimizerStatic8bit1StateBlockwise",
        "void at::native::amp_update_scale_cuda_kernel(float*)",
    ),
    "other": (
        "void at::native::(anonymous namespace)::upsample_bilinear2d_out_frame<float>(int)",
        "_selective_scan_update_kernel",
        "jacobi_kernel(float*)",
        "void trsm_left_kernel<float, 256>(int)",
        "my_kernel(float*)",
        "write_out_positions_kernel",
    ),
    "pooling": (
        "void at::native::(anonymous namespace)::avg_pool2d_out_cuda_frame<float, float>(int)",
        "mloPoolingG.kd",
        "void at::native::(anonymous namespace)::adaptive_maxpool<float>(int)",
    ),
    "quantize": (
        "void transformer_engine::cast_fp8_2D_kernel<X>(int)",
        "void vllm::scaled_fp8_quant_kernel<c10::Half, c10::Float8_e4m3fn>(int)",
        "void dequantize_block_q4_K<__half>(void const*)",
        "_per_token_group_quant_fp8",
        "kQuantizeBlockwise",
    ),
    "recurrent": (
        "void LSTM_elementWise_fp<float, float>(int)",
        "void at::native::(anonymous namespace)::kernel::lstm_cell_forward<float>(int)",
        "void persistRNN_kernel<float>(int)",
        "void RNN_elementWise_bp1<float, float, float>(int)",
    ),
    "reduction": (
        "void at::native::tensor_kernel_scan_innermost_dim<float, std::plus<float>>(float*)",
        "void at::native::_norm::reduce_kernel<512>(int)",
        "triton_red_fused_sum_0",
        "void asum_kernel<float>(int)",
        "void cub::DeviceScanByKeyKernel<X>(int)",
        "void multi_tensor_apply_kernel<TensorListMetadata<1>, L2NormFunctor<float>, float*>(int)",
    ),
    "rng_dropout": (
        "void at::native::(anonymous namespace)::distribution_nullary_kernel<float>(int)",
        "void at::native::(anonymous namespace)::sampleMultinomialOnce<float>(int)",
        "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<X>(int)",
        "void generate_seed_pseudo<rng_config<curandStateXORWOW, (curandOrdering)101>>(int)",
        "void gen_sequenced<curandStateXORWOW, float>(int)",
    ),
    "softmax": (
        "void at::native::(anonymous namespace)::cunn_SpatialSoftMaxForward<float, float,"
        " float>(int)",
        "triton_per_fused__softmax_3",
        "void tensorflow::softmax_kernel<float>(int)",
        "triton_red_fused__log_softmax_nll_loss_forward_4",
        "triton_softmax_4",
    ),
    "sort_index": (
        "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(int)",
        "void at::native::bitonicSortKVInPlace<2, -1, 16, 16, float, long>(int)",
        "void cub::DeviceMergeSortBlockSortKernel<X>(int)",
        "void at::native::kernelHistogram1D<float>(int)",
        "void at::native::indexFuncLargeIndex<float, long, unsigned int, 2>(int)",
        "void cub::DeviceSelectSweepKernel<X>(int)",
        "void k_get_rows_float<float, float>(float const*)",
    ),
}
