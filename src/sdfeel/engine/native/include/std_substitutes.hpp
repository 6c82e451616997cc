// What the other headers would take from C++'s standard library, written out: they need only C's.
//
// So a compiler that comes without a C++ library can build a model, and the result needs none
// either.
#pragma once

namespace sdfeel {

template <bool YES, class A, class B> struct Choice {
    using type = A;
};
template <class A, class B> struct Choice<false, A, B> {
    using type = B;
};
template <bool YES, class A, class B> using Choose = typename Choice<YES, A, B>::type;

template <class T> struct Referred {
    using type = T;
};
template <class T> struct Referred<T &> {
    using type = T;
};
// T itself, even if it is given as a reference.
template <class T> using Type = typename Referred<T>::type;

// A number that is known at compile time, passed as an argument.
template <int N> struct Number {
    static constexpr int value = N;
};

template <int... I> struct Indices {};
template <int N, int... I> struct IndicesTo : IndicesTo<N - 1, N - 1, I...> {};
template <int... I> struct IndicesTo<0, I...> {
    using type = Indices<I...>;
};
// 0, 1, ... N - 1.
template <int N> using To = typename IndicesTo<N>::type;

// Several things of different types, one after the other.
template <class... Things> struct Row {};
template <class First, class... Others> struct Row<First, Others...> {
    First first;
    Row<Others...> others;
};
template <class First, class...> struct FirstType {
    using type = First;
};
template <class... Things> using FirstOf = typename FirstType<Things...>::type;
template <int I, class Things> constexpr auto &nth(Things &row) {
    if constexpr (I == 0) return row.first;
    else return nth<I - 1>(row.others);
}

} // namespace sdfeel
