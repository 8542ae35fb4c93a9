module.exports = { singleQuote: true, printWidth: 120, trailingComma: 'all', arrowParens: 'always', useTabs: false };
