//! What callers get wrong, and what they are told.

use gradwire_reduce::{DataType, ReduceError, ReduceOp, reduce, reduce_into, scale};

#[test]
fn unsupported_operators_are_named_with_those_that_work() {
    let error = reduce(DataType::F32, ReduceOp::BitXor, &mut [], &[], None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "operator bxor does not apply to float32; use one of sum, avg, min, max, product"
    );
    let error = scale(DataType::Bool, &mut [1], 2).unwrap_err();
    assert_eq!(error, ReduceError::Unsupported { dtype: DataType::Bool, op: ReduceOp::Average });
}

#[test]
fn lengths_are_checked_before_anything_is_written() {
    let mut destination = [1u8; 8];
    let error = reduce(DataType::F32, ReduceOp::Sum, &mut destination, &[1; 4], None);
    assert_eq!(
        error.unwrap_err().to_string(),
        "received buffer has 4 bytes, destination has 8; they must be equal"
    );
    let error =
        reduce_into(DataType::F32, ReduceOp::Sum, &mut destination, &[1; 12], &[1; 8], None);
    assert_eq!(
        error.unwrap_err().to_string(),
        "local buffer has 12 bytes, destination has 8; they must be equal"
    );
    let error = reduce(DataType::I64, ReduceOp::Sum, &mut destination[..6], &[1; 6], None);
    assert_eq!(
        error.unwrap_err().to_string(),
        "buffer of 6 bytes holds no whole number of int64 (8 bytes each)"
    );
    assert_eq!(destination, [1; 8]);
}

#[test]
fn an_average_needs_ranks() {
    let mut destination = [8u8];
    let error = reduce(DataType::U8, ReduceOp::Average, &mut destination, &[2], Some(0));
    assert_eq!(error, Err(ReduceError::NoRanks));
    assert_eq!(scale(DataType::U8, &mut destination, 0), Err(ReduceError::NoRanks));
    assert_eq!(destination, [8]);
}

#[test]
fn checked_calls_reduce() {
    let mut destination = [7u8, 200];
    reduce(DataType::U8, ReduceOp::Average, &mut destination, &[4, 100], Some(3)).unwrap();
    assert_eq!(destination, [3, 14], "integers wrap, then truncate");
    reduce_into(DataType::U8, ReduceOp::Max, &mut destination, &[1, 9], &[2, 8], None).unwrap();
    assert_eq!(destination, [2, 9]);
    scale(DataType::U8, &mut destination, 2).unwrap();
    assert_eq!(destination, [1, 4]);
    reduce(DataType::F64, ReduceOp::Sum, &mut [], &[], None).unwrap();
}
