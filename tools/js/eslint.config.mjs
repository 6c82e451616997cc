import js from "@eslint/js";
import globals from "globals";

export default [
  js.configs.recommended,
  {
    languageOptions: { globals: globals.browser },
    rules: { "no-unused-vars": "error", eqeqeq: "error", "no-eval": "error", "prefer-const": "error" },
  },
];
