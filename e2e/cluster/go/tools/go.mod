module penstock.dev/e2e/tools

go 1.22
